-- The report contract: the views `jobs`, `job_tasks` and `job_artifacts` over the engine, and the functions for
-- external workers in any language. `{}` is the schema. Running this script again changes nothing.

-- The user whose rows are visible. Null for services and workers, which see all rows.
create or replace function {}.visible_report_user() returns text
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.get_end_user_id();
end $$;

-- The time at which an id was created.
create or replace function {}.report_id_time(p_id uuid) returns timestamptz
language plpgsql stable security definer set search_path = '' as $$
begin
  return holdfast.get_id_time(p_id);
end $$;

create or replace view {}.jobs with (security_barrier) as
  select j.id, j.owner as user_id, j.type, j.params,
    case j.status when 'queued' then 'queued' when 'running' then 'processing' when 'succeeded' then 'complete'
      when 'cancelled' then 'cancelled' else 'failed' end as status,
    jsonb_build_object(
      'percent', case when j.status = 'succeeded' then 100 else least(round(j.percent::numeric, 1), 99) end,
      'phase', case when j.status = 'queued' then 'queued' when j.status = 'succeeded' then 'complete'
        when j.percent >= 95 then 'finalizing' when j.percent >= 70 then 'audio' when j.percent >= 50 then 'pdf'
        when j.percent >= 10 then 'text' else 'calculating' end,
      'docsComplete', (
        select count(*) from (
          select split_part(t.name, ' ', 2) from holdfast.all_tasks t
          where t.job_id = j.id and t.type in ('pdf_generation', 'audio_generation') and t.status = 'succeeded'
          group by 1 having count(*) = 2) as complete),
      'docsTotal', 16,
      'message', j.message) as progress,
    {}.report_id_time(j.id) as created_at,
    j.finished_at as completed_at
  from holdfast.jobs j
  where j.type = 'nuclear_v2'
    and ((select {}.visible_report_user()) is null or j.owner = (select {}.visible_report_user()));

-- For services and workers. Users see their jobs, but not the tasks.
create or replace view {}.job_tasks as
  select t.id, t.job_id, t.type as task_type,
    -- The first task, `calculating`, has sequence -1; the contract numbers the others from 0.
    (row_number() over (partition by t.job_id order by t.id) - 2)::integer as sequence,
    case when t.status in ('waiting', 'scheduled', 'ready') then 'pending' when t.status = 'running' then 'claimed'
      when t.status = 'succeeded' then 'complete' else 'failed' end as status,
    case when t.status = 'running' then w.name end as worker_id,
    t.started_at as claimed_at,
    -- Every heartbeat renews the lease, so the time of the last heartbeat is the end of the lease minus its duration.
    case when t.status = 'running' then greatest(t.started_at, t.lease_until - p.lease_s * interval '1 second')
      end as heartbeat,
    t.attempt as attempts, 3 as max_attempts, t.args as input, t.output, t.error ->> 'message' as error
  from holdfast.all_tasks t
  join holdfast.jobs j on j.id = t.job_id and j.type = 'nuclear_v2'
  left join holdfast.tasks r on r.id = t.id
  left join holdfast.lanes l on l.id = r.lane_id
  left join holdfast.task_policies p on p.id = l.policy_id
  left join holdfast.workers w on w.id = t.worker_id;

create or replace view {}.job_artifacts with (security_barrier) as
  select f.id, f.job_id, f.task_id, case f.kind when 'audio' then 'audio_mp3' else f.kind end as artifact_type,
    -- The path in the contract. The key in the object store is different: it is unique per attempt.
    concat_ws('/', f.owner, f.job_id, f.kind, f.name) as storage_path, f.size as file_size_bytes,
    (f.meta ->> 'duration')::double precision as duration_seconds, f.created_at
  from holdfast.artifacts f
  where f.job_type = 'nuclear_v2' and f.status = 'visible' and (f.expires_at is null or f.expires_at > now())
    and ((select {}.visible_report_user()) is null or f.owner = (select {}.visible_report_user()));

-- The arguments of a task, with references to earlier tasks replaced by the results of these tasks.
create or replace function {}.resolve_report_arguments(p_args jsonb, p_parents jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
declare
  v_value jsonb;
begin
  if jsonb_typeof(p_args) = 'object' and p_args ? 'holdfast:result' then
    return p_parents -> (p_args ->> 'holdfast:result');
  elsif jsonb_typeof(p_args) = 'object' then
    select jsonb_object_agg(e.key, {}.resolve_report_arguments(e.value, p_parents)) into v_value
    from jsonb_each(p_args) as e;
    return coalesce(v_value, '{}');
  elsif jsonb_typeof(p_args) = 'array' then
    select jsonb_agg({}.resolve_report_arguments(e.value, p_parents) order by e.ordinality) into v_value
    from jsonb_array_elements(p_args) with ordinality as e;
    return coalesce(v_value, '[]');
  end if;
  return p_args;
end $$;

-- The lease that a worker holds on a task. External workers pass their name and need not store attempt and nonce.
create or replace function {}.find_report_lease(p_task_id uuid, p_worker_id text, out attempt integer, out nonce bigint)
language plpgsql stable security definer set search_path = '' as $$
begin
  select t.attempt, t.nonce into attempt, nonce
  from holdfast.tasks t join holdfast.workers w on w.id = t.worker_id
  where t.id = p_task_id and w.name = p_worker_id and t.status = 'running';
  if nonce is null then
    raise exception using errcode = 'HF001',
      message = format('Worker %s does not hold the lease of task %s.', p_worker_id, p_task_id),
      hint = 'Stop working on the task; another worker has it, or it has ended.';
  end if;
end $$;

create or replace function {}.claim_tasks(
  p_worker_id text, p_max_tasks integer default 5, p_task_types text[] default null)
returns table (id uuid, job_id uuid, task_type text, sequence integer, status text, worker_id text,
  claimed_at timestamptz, attempts integer, max_attempts integer, input jsonb, attempt integer, nonce bigint)
language plpgsql security definer set search_path = '' as $$
begin
  return query
  select c.id, c.job_id, c.type, (
      select s.task_sequence from (select o.id, (row_number() over (order by o.id) - 2)::integer as task_sequence
        from holdfast.tasks o where o.job_id = c.job_id) as s where s.id = c.id),
    'claimed', p_worker_id, holdfast.now(), c.attempt, 3,
    {}.resolve_report_arguments(c.args, coalesce(c.parents, '{}')), c.attempt, c.nonce
  from holdfast.claim_tasks(p_worker_id, p_max_tasks,
    coalesce(p_task_types, '{calculating,text_generation,pdf_generation,audio_generation,finalizing}'),
    '{reports}') as c;
end $$;

create or replace function {}.heartbeat_task(p_task_id uuid, p_worker_id text) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_lease record := {}.find_report_lease(p_task_id, p_worker_id);
begin
  perform holdfast.heartbeat_task(p_task_id, v_lease.attempt, v_lease.nonce);
  return true;
end $$;

create or replace function {}.complete_task(p_task_id uuid, p_worker_id text, p_output jsonb default null)
returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_lease record := {}.find_report_lease(p_task_id, p_worker_id);
begin
  perform holdfast.complete_task(p_task_id, v_lease.attempt, v_lease.nonce, p_output);
  return true;
end $$;

create or replace function {}.fail_task(p_task_id uuid, p_worker_id text, p_error text default null) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_lease record := {}.find_report_lease(p_task_id, p_worker_id);
begin
  perform holdfast.fail_task(p_task_id, v_lease.attempt, v_lease.nonce, p_error);
  return true;
end $$;

create or replace function {}.reclaim_stale_tasks() returns integer
language plpgsql security definer set search_path = '' as $$
begin
  return holdfast.reclaim_stale_tasks();
end $$;

do $$
declare
  v_role text;
  v_function text;
begin
  foreach v_function in array array['visible_report_user()', 'report_id_time(uuid)',
    'resolve_report_arguments(jsonb, jsonb)', 'find_report_lease(uuid, text)', 'claim_tasks(text, integer, text[])',
    'heartbeat_task(uuid, text)', 'complete_task(uuid, text, jsonb)', 'fail_task(uuid, text, text)',
    'reclaim_stale_tasks()'] loop
    execute format('revoke all on function {}.%s from public', v_function);
    foreach v_role in array array['service_role', 'holdfast_worker'] loop
      continue when not exists (select from pg_catalog.pg_roles where rolname = v_role);
      execute format('grant usage on schema %s to %I', rtrim('{}.', '.'), v_role);
      execute format('grant execute on function {}.%s to %I', v_function, v_role);
    end loop;
  end loop;
  if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
    grant select on {}.jobs, {}.job_tasks, {}.job_artifacts to service_role;
  end if;
  if exists (select from pg_catalog.pg_roles where rolname = 'authenticated') then
    execute format('grant usage on schema %s to authenticated', rtrim('{}.', '.'));
    grant select on {}.jobs, {}.job_artifacts to authenticated;
    grant execute on function {}.visible_report_user(), {}.report_id_time(uuid) to authenticated;
  end if;
end $$;
revoke all on {}.jobs, {}.job_tasks, {}.job_artifacts from public;
