-- The views of the report contract. Reports come from {}.reports, tasks and files from the engine.

-- The user whose rows are visible. Null for services and workers, which see all rows.
create or replace function {}.visible_report_user() returns text
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.get_end_user_id();
end $$;

-- The number of documents of a report that have both their files. Users may not read the tasks of their jobs.
create or replace function {}.count_complete_documents(p_job_id uuid) returns bigint
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  return (
    select count(*) from (
      select split_part(t.name, ' ', 2) from holdfast.all_tasks t
      where t.job_id = p_job_id and t.type in ('pdf_generation', 'audio_generation') and t.status = 'succeeded'
        and (v_user is null or t.owner = v_user)
      group by 1 having count(*) = 2) as complete);
end $$;

-- The time at which an id was created.
create or replace function {}.report_id_time(p_id uuid) returns timestamptz
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.get_id_time(p_id);
end $$;

create or replace view {}.jobs with (security_barrier) as
  select r.id, r.user_id, r.type, r.params, r.status,
    jsonb_build_object(
      'percent', p.percent,
      'phase', case when r.status in ('queued', 'complete') then r.status
        when p.percent >= 95 then 'finalizing' when p.percent >= 70 then 'audio' when p.percent >= 50 then 'pdf'
        when p.percent >= 10 then 'text' else 'calculating' end,
      'docsComplete', case when r.completed_at is null then {}.count_complete_documents(r.id)
        else r.docs_complete end,
      'docsTotal', 16,
      'message', case when r.completed_at is null then j.message else r.message end) as progress,
    r.created_at, r.completed_at
  from {}.reports r
  left join holdfast.jobs j on j.id = r.id and r.completed_at is null
  -- While a report runs, its percent is that of the engine. A report that ended has the share that succeeded.
  cross join lateral (select case when r.completed_at is null then least(round(j.percent::numeric, 1), 99)
    else round(r.percent::numeric, 1) end as percent) as p
  where (select {}.visible_report_user()) is null or r.user_id = (select {}.visible_report_user());

-- The tasks of reports, for services and workers. A worker that is no service sees the input, the output and the
-- errors of the tasks that it holds: these contain what users typed. Users see their jobs, but not the tasks.
create or replace function {}.list_report_tasks()
returns table (id uuid, job_id uuid, task_type text, sequence integer, status text, worker_id text,
  claimed_at timestamptz, heartbeat timestamptz, attempts integer, max_attempts integer, input jsonb, output jsonb,
  error text)
language plpgsql stable security definer set search_path = '' as $$
declare
  v_role text := coalesce(nullif(current_setting('role', true), 'none'), session_user);
  v_all boolean := not pg_has_role(v_role, 'holdfast_worker', 'member')
    or (to_regrole('service_role') is not null and pg_has_role(v_role, 'service_role', 'member'));
begin
  if holdfast.get_end_user_id() is not null then
    return;
  end if;
  return query
  select t.id, t.job_id, t.type,
    -- The first task, `calculating`, has sequence -1; the contract numbers the others from 0.
    (row_number() over (partition by t.job_id order by t.id) - 2)::integer,
    case when t.status in ('waiting', 'scheduled', 'ready') then 'pending' when t.status = 'running' then 'claimed'
      when t.status = 'succeeded' then 'complete' else 'failed' end,
    case when t.status = 'running' then w.name end, t.started_at,
    -- Every heartbeat renews the lease, so the time of the last heartbeat is the end of the lease minus its duration.
    case when t.status = 'running' then greatest(t.started_at, t.lease_until - p.lease_s * interval '1 second') end,
    t.attempt, 3, case when v.visible then t.args end, case when v.visible then t.output end,
    case when v.visible then t.error ->> 'message' end
  from holdfast.all_tasks t
  join holdfast.jobs j on j.id = t.job_id and j.type = 'nuclear_v2'
  left join holdfast.tasks r on r.id = t.id
  left join holdfast.lanes l on l.id = r.lane_id
  left join holdfast.task_policies p on p.id = l.policy_id
  left join holdfast.workers w on w.id = t.worker_id
  left join {}.report_claims c on c.task_id = t.id and c.nonce = r.nonce and t.status = 'running'
  cross join lateral (select v_all or c.claimed_by = {}.get_report_claimant() as visible) as v;
end $$;

drop view if exists {}.job_tasks;
create view {}.job_tasks as
  select id, job_id, task_type, sequence, status, worker_id, claimed_at, heartbeat, attempts, max_attempts, input,
    output, error
  from {}.list_report_tasks();

drop view if exists {}.job_artifacts;
create view {}.job_artifacts with (security_barrier) as
  select f.id, f.job_id, f.task_id, case f.kind when 'audio' then 'audio_mp3' else f.kind end as artifact_type,
    -- The path in the contract. The key in the object store is different: it is unique per attempt.
    concat_ws('/', f.owner, f.job_id, f.kind, f.name) as storage_path, f.size as file_size_bytes,
    (f.meta ->> 'duration')::double precision as duration_seconds, f.created_at,
    -- Links are made on request and never stored. The column is there for workers that insert one.
    null::text as public_url
  from holdfast.artifacts f
  where f.job_type = 'nuclear_v2' and f.status = 'visible' and (f.expires_at is null or f.expires_at > now())
    and ((select {}.visible_report_user()) is null or f.owner = (select {}.visible_report_user()));

