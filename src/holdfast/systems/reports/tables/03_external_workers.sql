-- Functions for external workers in any language. A claim records who claimed the task.

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

-- The lease that a worker holds on a task of a report. External workers pass their name, and need not store attempt and
-- nonce; one that passes the fence of its claim cannot act on a later claim of the same task.
create or replace function {}.find_report_lease(p_task_id uuid, p_worker_id text, p_fence text, out attempt integer,
  out nonce bigint)
language plpgsql stable security definer set search_path = '' as $$
begin
  select t.attempt, t.nonce into attempt, nonce
  from {}.report_claims c
  join holdfast.tasks t on t.id = c.task_id and t.nonce = c.nonce and t.status = 'running'
  join holdfast.workers w on w.id = t.worker_id
  where c.task_id = p_task_id and c.claimed_by = {}.get_report_claimant() and w.name = p_worker_id
    and (p_fence is null or p_fence = t.attempt || '.' || t.nonce);
  if nonce is null then
    raise exception using errcode = 'HF001',
      message = format('Worker %s does not hold the lease of task %s.', p_worker_id, p_task_id),
      hint = 'Stop working on the task: another worker has it, or it has ended. Only the login or the service key that '
        || 'claimed a task with claim_tasks can report on it.';
  end if;
end $$;

-- The functions of earlier versions have the same names, but other arguments and columns.
drop function if exists {}.claim_tasks(text, integer, text[]);
drop function if exists {}.find_report_lease(uuid, text);
drop function if exists {}.heartbeat_task(uuid, text);
drop function if exists {}.complete_task(uuid, text, jsonb);
drop function if exists {}.fail_task(uuid, text, text);

create function {}.claim_tasks(
  p_worker_id text, p_max_tasks integer default 5, p_task_types text[] default null)
returns table (id uuid, job_id uuid, task_type text, sequence integer, status text, worker_id text,
  claimed_at timestamptz, attempts integer, max_attempts integer, input jsonb, attempt integer, nonce bigint,
  fence text)
language plpgsql security definer set search_path = '' as $$
declare
  v_all_types constant text[] := '{calculating,text_generation,pdf_generation,audio_generation,finalizing}';
  v_types text[] := array(select t from unnest(coalesce(p_task_types, v_all_types)) as t where t = any (v_all_types));
begin
  if v_types = '{}' then
    return;
  end if;
  -- Claims whose worker never reported. A report may take hours, but no task of it takes a day.
  delete from {}.report_claims c where c.task_id in (
    select o.task_id from {}.report_claims o where o.claimed_at < holdfast.now() - interval '1 day'
    limit 100 for update skip locked);
  return query
  with claimed as materialized (
    select * from holdfast.claim_tasks(p_worker_id, p_max_tasks, v_types, '{reports}')
  ), recorded as (
    insert into {}.report_claims as r (task_id, nonce, claimed_by, claimed_at)
    select c.id, c.nonce, {}.get_report_claimant(), holdfast.now() from claimed c
    on conflict (task_id) do update set nonce = excluded.nonce, claimed_by = excluded.claimed_by,
      claimed_at = excluded.claimed_at
  )
  select c.id, c.job_id, c.type, (
      select s.task_sequence from (select o.id, (row_number() over (order by o.id) - 2)::integer as task_sequence
        from holdfast.tasks o where o.job_id = c.job_id) as s where s.id = c.id),
    'claimed', p_worker_id, holdfast.now(), c.attempt, 3,
    {}.resolve_report_arguments(c.args, coalesce(c.parents, '{}')), c.attempt, c.nonce, c.attempt || '.' || c.nonce
  from claimed c;
end $$;

create or replace function {}.heartbeat_task(p_task_id uuid, p_worker_id text, p_fence text default null)
returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_lease record := {}.find_report_lease(p_task_id, p_worker_id, p_fence);
begin
  perform holdfast.heartbeat_task(p_task_id, v_lease.attempt, v_lease.nonce);
  return true;
end $$;

create or replace function {}.complete_task(p_task_id uuid, p_worker_id text, p_output jsonb default null,
  p_fence text default null)
returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_lease record := {}.find_report_lease(p_task_id, p_worker_id, p_fence);
begin
  perform holdfast.complete_task(p_task_id, v_lease.attempt, v_lease.nonce, p_output);
  delete from {}.report_claims c where c.task_id = p_task_id;
  return true;
end $$;

create or replace function {}.fail_task(p_task_id uuid, p_worker_id text, p_error text default null,
  p_fence text default null)
returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_lease record := {}.find_report_lease(p_task_id, p_worker_id, p_fence);
begin
  perform holdfast.fail_task(p_task_id, v_lease.attempt, v_lease.nonce, p_error);
  delete from {}.report_claims c where c.task_id = p_task_id;
  return true;
end $$;

create or replace function {}.reclaim_stale_tasks() returns integer
language plpgsql security definer set search_path = '' as $$
begin
  return holdfast.reclaim_stale_tasks();
end $$;
