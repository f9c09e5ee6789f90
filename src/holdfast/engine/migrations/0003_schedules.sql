-- Schedules, and the catalogue of task types.

create table holdfast.schedules (
  name text primary key check (octet_length(name) between 1 and 200),
  cron text,                                 -- five fields; or
  every_s double precision check (every_s between 1 and 315360000),
  timezone text not null default 'UTC',
  missed text not null default 'coalesce' check (missed in ('skip', 'coalesce', 'catch_up')),
  most integer not null default 100 check (most between 1 and 1000), -- with catch_up: so many runs are made up for
  job jsonb not null,                        -- what `submit` is given
  owner text,
  source text,                               -- the application whose code declares it; null: made by somebody
  anchor_at timestamptz not null,            -- intervals are counted from here
  next_at timestamptz not null,
  last_at timestamptz,                       -- the time that the last run was for
  last_job uuid,
  last_error text,                           -- why the last run could not be submitted
  paused_at timestamptz,
  paused_by text,
  created_at timestamptz not null,
  changed_at timestamptz not null,
  check ((cron is null) <> (every_s is null))
) with (fillfactor = 50);
create index schedules_due on holdfast.schedules (next_at) where paused_at is null;
create index schedules_owner on holdfast.schedules (owner, name) where owner is not null;

-- What workers can run, as they said when they started. `schema` describes the arguments.
create table holdfast.task_types (
  name text primary key check (octet_length(name) between 1 and 200),
  queue text not null,
  schema jsonb,
  hash text not null,
  doc text,
  options jsonb not null default '{}',
  worker text,                               -- who said so last
  version text,
  first_seen_at timestamptz not null,
  changed_at timestamptz not null,
  seen_at timestamptz not null
);

do $$
declare
  v_table text;
begin
  foreach v_table in array '{schedules,task_types}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
