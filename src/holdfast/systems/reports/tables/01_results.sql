-- Reports and how they ended, kept as long as their files, whatever the history of the engine keeps. `{}` is the
-- schema. Running these scripts again changes nothing.

-- One row per report. Its id is the id of the job. A trigger on the jobs of the engine writes it with every change of
-- the status, so it is right at every moment; percent, message and documents are those at the end.
create table if not exists {}.reports (
  id uuid primary key,
  user_id text,
  type text not null,
  params jsonb,
  status text not null check (status in ('queued', 'processing', 'complete', 'failed', 'cancelled')),
  percent real not null default 0,
  docs_complete integer not null default 0,
  message text,
  error text,
  created_at timestamptz not null,
  completed_at timestamptz
);
create index if not exists reports_user on {}.reports (user_id, id desc);
create index if not exists reports_completed on {}.reports (completed_at) where completed_at is not null;

-- The share of a report that has succeeded, in percent, and its complete documents. The engine also counts tasks that
-- failed or were cancelled, because they have ended.
create or replace function {}.measure_report(p_job_id uuid, out percent real, out docs_complete integer)
language plpgsql stable security definer set search_path = '' as $$
begin
  select coalesce(100 * sum(coalesce(t.weight, 1)) filter (where t.status = 'succeeded')
    / nullif(sum(coalesce(t.weight, 1)), 0), 0) into percent
  from holdfast.all_tasks t where t.job_id = p_job_id;
  select count(*) into docs_complete from (
    select split_part(t.name, ' ', 2) from holdfast.all_tasks t
    where t.job_id = p_job_id and t.type in ('pdf_generation', 'audio_generation') and t.status = 'succeeded'
    group by 1 having count(*) = 2) as complete;
end $$;

create or replace function {}.convert_report_status(p_status text) returns text
language plpgsql immutable set search_path = '' as $$
begin
  return case p_status when 'queued' then 'queued' when 'running' then 'processing' when 'succeeded' then 'complete'
    when 'cancelled' then 'cancelled' else 'failed' end;
end $$;

-- Record the state of a report in {}.reports.
create or replace function {}.record_report(p_job holdfast.jobs) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_status text := {}.convert_report_status(p_job.status);
  v_measured record;
begin
  select * into v_measured from {}.measure_report(p_job.id);
  insert into {}.reports as r (id, user_id, type, params, status, percent, docs_complete, message, error, created_at,
    completed_at)
  values (p_job.id, p_job.owner, p_job.type, p_job.params, v_status,
    case when v_status = 'complete' then 100 else least(v_measured.percent, 99) end, v_measured.docs_complete,
    case v_status when 'complete' then 'Complete' when 'failed' then 'Failed' when 'cancelled' then 'Cancelled'
      else p_job.message end,
    case when v_status = 'failed' then holdfast.redact_error(p_job.error) ->> 'message' end, holdfast.get_id_time(p_job.id),
    p_job.finished_at)
  on conflict (id) do update set status = excluded.status, percent = excluded.percent,
    docs_complete = excluded.docs_complete, message = excluded.message, error = excluded.error,
    completed_at = excluded.completed_at;
end $$;

-- A report that cannot be recorded must not stop the engine, for example after somebody dropped the table.
create or replace function {}.record_report_change() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  perform {}.record_report(new);
  return null;
exception when undefined_table or undefined_function or undefined_column or insufficient_privilege then
  raise warning 'Report % was not recorded: %', new.id, sqlerrm;
  return null;
end $$;
-- The triggers carry the name of the schema, because the system can be installed in several.
do $$
declare
  v_schema text := trim(both '"' from rtrim('{}.', '.'));
begin
  execute format('drop trigger if exists %1$I on holdfast.jobs; create trigger %1$I after insert on holdfast.jobs
    for each row when (new.type = ''nuclear_v2'') execute function {}.record_report_change()',
    'record_new_report_' || v_schema);
  execute format('drop trigger if exists %1$I on holdfast.jobs; create trigger %1$I after update on holdfast.jobs
    for each row when (new.type = ''nuclear_v2'' and old.status is distinct from new.status)
    execute function {}.record_report_change()', 'record_report_change_' || v_schema);
end $$;

-- Reports that were started by an earlier version.
do $$
begin
  perform {}.record_report(j) from holdfast.jobs j
  where j.type = 'nuclear_v2' and not exists (select from {}.reports r where r.id = j.id);
end $$;

-- Files that a worker registers without a time to live.
do $$
begin
  if not exists (select from holdfast.artifact_retention_rules r where r.owner = '' and r.job_type = 'nuclear_v2') then
    perform holdfast.put_artifact_retention_rule(null, 'nuclear_v2', 90 * 86400);
  end if;
end $$;

-- Delete reports that ended before a time and have no file any more. Return how many.
create or replace function {}.delete_old_reports(p_before timestamptz, p_limit integer) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_count integer;
begin
  delete from {}.reports r where r.id in (
    select o.id from {}.reports o where o.completed_at < p_before
      and not exists (select from holdfast.jobs j where j.id = o.id)
      and not exists (select from holdfast.artifacts f where f.job_id = o.id and f.status = 'visible'
        and (f.expires_at is null or f.expires_at > holdfast.now()))
    order by o.completed_at limit p_limit for update skip locked);
  get diagnostics v_count = row_count;
  return v_count;
end $$;

-- Which login or service key claimed a task for an external worker. The lease itself is in the engine: a row counts
-- only while the task runs with the same nonce. Tasks that were claimed in another way have no row.
create table if not exists {}.report_claims (
  task_id uuid primary key,
  nonce bigint not null,
  claimed_by text not null,
  claimed_at timestamptz not null
);
create index if not exists report_claims_claimed_at on {}.report_claims (claimed_at);
alter table {}.report_claims enable row level security;
alter table {}.report_claims force row level security;
revoke all on {}.report_claims from public;
drop policy if exists owner_all on {}.report_claims;
do $$
begin
  execute format('create policy owner_all on {}.report_claims to %I using (true) with check (true)', (
    select pg_catalog.pg_get_userbyid(c.relowner) from pg_catalog.pg_class c
    where c.oid = '{}.report_claims'::regclass));
end $$;

-- The login and the service key that call. Never the connection: a pooler hands it from one client to another. A login
-- cannot choose its name; the key is in the claims that the API sets for each request.
create or replace function {}.get_report_claimant() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_claims text := nullif(current_setting('request.jwt.claims', true), '');
begin
  return session_user || ' ' || coalesce(v_claims::jsonb ->> 'service_key', '');
exception when data_exception then
  return session_user || ' ';
end $$;
