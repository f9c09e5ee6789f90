-- Cancel: decided by one change of the row, and final. What the lease holder sends later is stale. It learns of the
-- cancellation by a notification, and with its next heartbeat at the latest.

-- Cancel a job. Return {cancelled, status}; `cancelled` is false if the job had already ended.
create or replace function holdfast.cancel_job(p_id uuid, p_reason text default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_cancelled boolean;
begin
  if not holdfast.can_user_see_job(p_id, v_user) then
    perform holdfast.raise_error('HF002', format('Job %s does not exist.', p_id), 'id');
  end if;
  v_cancelled := holdfast.cancel_job_if_live(p_id, p_reason, holdfast.now());
  return jsonb_build_object('cancelled', v_cancelled, 'status', holdfast.get_job_status(p_id));
end $$;

-- Cancel a job that has not ended. Return whether this call cancelled it. Take locks in the order of
-- leases/leases.sql.
create or replace function holdfast.cancel_job_if_live(p_job_id uuid, p_reason text, p_now timestamptz) returns boolean
language plpgsql set search_path = '' as $$
declare
  v_task holdfast.tasks;
  v_error jsonb := holdfast.build_task_error('cancel', jsonb_build_object('message', coalesce(p_reason, 'Cancelled.')));
  v_lanes bigint[];
  v_ended uuid[];
begin
  select * into v_task from holdfast.tasks t where t.id = p_job_id and t.job_id is null for update;
  if found then
    perform holdfast.apply_task_end_effects(case when v_task.status = 'running' then array[v_task.lane_id] end,
      holdfast.end_task(v_task, 'cancelled', null, v_error, false, p_now), p_now);
    perform holdfast.notify_job_waiters(array[p_job_id]);
    perform holdfast.notify_workers_of_cancellation(v_task.status = 'running');
    return true;
  end if;
  perform from holdfast.jobs j where j.id = p_job_id and j.finished_at is null for update;
  if not found then
    return false;
  end if;
  with alive as materialized (
    select t.id, t.lane_id, t.status from holdfast.tasks t
    where t.job_id = p_job_id and t.status || '' in ('waiting', 'scheduled', 'ready', 'running')
    order by t.id for update
  ), ended as (
    update holdfast.tasks t set status = 'cancelled', error = v_error, finished_at = p_now, nonce = null,
      lease_until = null
    from alive a where t.id = a.id
    returning t.id, case when a.status = 'running' then t.lane_id end as lane_id
  )
  select array_agg(e.id), array_agg(e.lane_id) filter (where e.lane_id is not null)
  into v_ended, v_lanes from ended e;
  -- All live tasks have ended, so the dependencies between them have nothing left to decide.
  update holdfast.dependencies e set satisfied = true where e.job_id = p_job_id and not e.satisfied;
  perform holdfast.apply_task_end_effects(v_lanes, holdfast.add_ended_tasks_to_job_counts(v_ended, p_now), p_now);
  perform holdfast.notify_workers_of_cancellation(v_lanes is not null);
  return true;
end $$;

-- Notify workers to check their leases at once instead of with their next heartbeat. Send one notification, however
-- many jobs were cancelled.
create or replace function holdfast.notify_workers_of_cancellation(p_running boolean) returns void
language plpgsql set search_path = '' as $$
begin
  if p_running then
    perform pg_notify('holdfast', 'cancel');
  end if;
end $$;

-- Cancel one task of a job. Its children follow the policy of their dependency.
create or replace function holdfast.cancel_task(p_id uuid, p_reason text default null) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_now timestamptz := holdfast.now();
  v_job uuid := (select t.job_id from holdfast.tasks t where t.id = p_id);
  v_task holdfast.tasks;
begin
  if not holdfast.can_user_see_job(coalesce(v_job, p_id), v_user) then
    perform holdfast.raise_error('HF002', format('Task %s does not exist.', p_id), 'id');
  end if;
  if v_job is null then
    return holdfast.cancel_job_if_live(p_id, p_reason, v_now);
  end if;
  perform pg_current_xact_id();
  perform from holdfast.jobs j where j.id = v_job for update;
  select * into v_task from holdfast.tasks t
  where t.id = p_id and t.status || '' in ('waiting', 'scheduled', 'ready', 'running') for update;
  if not found then
    return false;
  end if;
  perform holdfast.end_task(v_task, 'cancelled', null,
    holdfast.build_task_error('cancel', jsonb_build_object('message', coalesce(p_reason, 'Cancelled.'))), false, v_now);
  perform holdfast.apply_task_end_effects(case when v_task.status = 'running' then array[v_task.lane_id] end,
    holdfast.resolve_dependencies(array[p_id], v_now), v_now);
  perform holdfast.notify_workers_of_cancellation(v_task.status = 'running');
  return true;
end $$;

-- Cancel live jobs that match the filter {owner, type, queue, labels, batch, ids}, up to p_limit. Return the number;
-- call it again until it returns 0. A call that would have to read more than a million other jobs before it finds a
-- match is refused; cancel_jobs_chunk says where to continue.
create or replace function holdfast.cancel_jobs(p_filter jsonb, p_reason text default null,
  p_limit integer default 1000)
returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_max_chunks constant integer := 10;
  v_chunk jsonb;
  v_from jsonb;
begin
  for v_round in 1 .. v_max_chunks loop
    v_chunk := holdfast.cancel_jobs_chunk(p_filter, p_reason, p_limit, v_from);
    v_from := nullif(v_chunk -> 'next', 'null');
    -- The ids of another chunk would not follow the lock order.
    if v_chunk -> 'cancelled' <> '0' or v_from is null then
      return (v_chunk -> 'cancelled')::int;
    end if;
  end loop;
  perform holdfast.raise_error('HF004', 'No match among the jobs that were read, and not all jobs were read.', 'filter',
    'Use cancel_jobs_chunk, which returns where to continue, or filter by owner, batch or ids.');
  return null;
end $$;

call holdfast.grant_execute('holdfast_worker', 'cancel_job', 'cancel_task', 'cancel_jobs');
call holdfast.grant_execute('service_role', 'cancel_job', 'cancel_task', 'cancel_jobs');
call holdfast.grant_execute('authenticated', 'cancel_job', 'cancel_jobs');
