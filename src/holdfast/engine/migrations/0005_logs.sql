-- What tasks say about themselves: lines, kept with the attempt that said them.

create sequence holdfast.log_lines as bigint;

create table holdfast.logs (
  n bigint not null,                         -- rises within a job in the order in which lines become visible
  task_id uuid not null,
  job_id uuid not null,
  attempt integer not null,
  seq integer not null,                      -- within the attempt, from 1
  at timestamptz not null,
  keep_until timestamptz not null,
  owner text,
  level text not null check (level in ('debug', 'info', 'warning', 'error')),
  message text not null,
  fields jsonb
) partition by range (keep_until);
create index logs_job on holdfast.logs (job_id, n);
create index logs_task on holdfast.logs (task_id, attempt, seq);

create table holdfast.logs_rest partition of holdfast.logs default;

do $$
declare
  v_table text;
begin
  foreach v_table in array '{logs,logs_rest}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
