-- Functions for workers in any language: one task per call, on the same engine.
--
-- claim_tasks returns the lease of a task as (attempt, nonce), and every later call passes it. A call with a stale
-- lease is refused with SQLSTATE HF001. A call that is repeated because its response was lost succeeds.

-- Claim up to p_max_tasks tasks, for workers in any language. Each row has the lease of a task: (attempt, nonce).
create or replace function holdfast.claim_tasks(
  p_worker text, p_max_tasks integer default 1, p_task_types text[] default null, p_queues text[] default null)
returns table (id uuid, job_id uuid, name text, type text, queue text, attempt integer, nonce bigint, args jsonb,
  parents jsonb,
  lease_s double precision, timeout_s double precision)
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_queues text[] := coalesce(p_queues, array(select distinct l.queue from holdfast.lanes l));
  v_worker bigint := holdfast.find_or_create_worker(p_worker, v_queues, p_task_types, null, v_now);
  v_header jsonb;
begin
  if p_max_tasks is null or p_max_tasks not between 1 and 1000 then
    perform holdfast.raise_error('HF004', format('max_tasks must be from 1 to 1000, got %s.', p_max_tasks),
      'max_tasks');
  end if;
  perform holdfast.sweep_due_tasks(v_now);
  return query
  with batch as materialized (
    select * from holdfast.claim_ready_tasks(v_worker, p_max_tasks, v_queues, p_task_types, '{}', v_now)
  )
  select b.id, coalesce(b.job_id, b.id), coalesce(b.name, h.header #>> array['lanes', b.lane_id::text, '1']),
    h.header #>> array['lanes', b.lane_id::text, '1'], h.header #>> array['lanes', b.lane_id::text, '0'], b.attempt,
    (h.header ->> 'nonce')::bigint, b.args, b.parents,
    (h.header #>> array['lanes', b.lane_id::text, '2'])::double precision,
    (h.header #>> array['lanes', b.lane_id::text, '3'])::double precision
  from batch b cross join (select c.header from batch c where c.id is null) as h
  where b.id is not null;
end $$;

-- Record the outcome of one task, or raise HF001 if the lease is stale.
create or replace function holdfast.record_task_outcome(p_id uuid, p_attempt integer, p_nonce bigint, p_outcome text,
  p_body jsonb) returns void
language plpgsql set search_path = '' as $$
begin
  if 'stale' = any (holdfast.finish_tasks(array[p_id], array[p_attempt], array[p_nonce], array[p_outcome],
    array[p_body], holdfast.now())) then
    perform holdfast.raise_error('HF001', format('The lease of task %s has ended or is held by another worker.', p_id),
      null,
      'Stop working on the task; its outcome is not recorded.');
  end if;
end $$;

-- Extend a lease and optionally report progress. Returns the seconds until the lease expires.
create or replace function holdfast.heartbeat_task(
  p_task_id uuid, p_attempt integer, p_nonce bigint,
  p_percent double precision default null, p_phase text default null, p_message text default null)
    returns double precision
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_lease double precision;
begin
  if p_percent is not null or p_phase is not null or p_message is not null then
    perform holdfast.progress(p_task_id, p_attempt, p_nonce, p_percent, p_phase, p_message);
  end if;
  update holdfast.tasks t set lease_until = least(v_now + k.lease_s * interval '1 second',
    t.started_at + (k.timeout_s + holdfast.get_lease_grace_s()) * interval '1 second')
  from holdfast.lanes l join holdfast.task_policies k on k.id = l.policy_id
  where t.id = p_task_id and t.attempt = p_attempt and t.nonce = p_nonce and t.status || '' = 'running'
    and l.id = t.lane_id
  returning extract(epoch from t.lease_until - v_now) into v_lease;
  if not found then
    perform holdfast.raise_error('HF001', format('The lease of task %s has ended or is held by another worker.',
      p_task_id), null,
      'Stop working on the task; its outcome is not recorded.');
  end if;
  return v_lease;
end $$;

-- Record the success of a task with its output.
create or replace function holdfast.complete_task(p_task_id uuid, p_attempt integer, p_nonce bigint,
  p_output jsonb default null)
returns void
language plpgsql security definer set search_path = '' as $$
begin
  if pg_column_size(p_output) > 262144 then
    perform holdfast.raise_error('HF004', 'The output is longer than 256 KiB.', 'output',
      'Save it as an artifact and return its key.');
  end if;
  perform holdfast.record_task_outcome(p_task_id, p_attempt, p_nonce, 'succeed', p_output);
end $$;

-- Record a failure. The task is retried by its policy unless p_retry is false.
create or replace function holdfast.fail_task(
  p_task_id uuid, p_attempt integer, p_nonce bigint, p_error text default null, p_type text default 'Error',
  p_traceback text default null, p_retry boolean default true, p_retry_after_s double precision default null)
    returns void
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.record_task_outcome(p_task_id, p_attempt, p_nonce, case when p_retry then 'fail' else 'reject' end,
    jsonb_build_object('type', p_type, 'message', p_error, 'traceback', p_traceback, 'retry_after_s', p_retry_after_s));
end $$;

-- Run the task again after a delay, without charging an attempt.
create or replace function holdfast.snooze_task(p_task_id uuid, p_attempt integer, p_nonce bigint,
  p_delay_s double precision)
returns void
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.record_task_outcome(p_task_id, p_attempt, p_nonce, 'snooze', jsonb_build_object('delay_s', p_delay_s));
end $$;

-- Give a task back so that another worker can claim it at once, without charging an attempt.
create or replace function holdfast.release_task(p_task_id uuid, p_attempt integer, p_nonce bigint) returns void
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.record_task_outcome(p_task_id, p_attempt, p_nonce, 'release', null);
end $$;

-- Reclaim the tasks of lost workers, as claims also do. Returns the number of tasks.
create or replace function holdfast.reclaim_stale_tasks(p_limit integer default 1000) returns integer
language plpgsql volatile security definer set search_path = '' as $$
begin
  return (
  select holdfast.reclaim_expired_leases('-infinity', holdfast.now(), p_limit));
end $$;

call holdfast.grant_execute('holdfast_worker', 'claim_tasks', 'heartbeat_task', 'complete_task', 'fail_task',
  'snooze_task', 'release_task', 'reclaim_stale_tasks');
call holdfast.grant_execute('service_role', 'claim_tasks', 'heartbeat_task', 'complete_task', 'fail_task',
  'snooze_task', 'release_task', 'reclaim_stale_tasks');
