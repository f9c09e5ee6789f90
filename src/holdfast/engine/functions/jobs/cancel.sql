-- Cancel: decided by one change of the row, and final. Whatever the holder of the lease sends later is stale; it learns
-- of it by a notification, and with its next beat at the latest.

create or replace function holdfast.cancel_job(p_id uuid, p_reason text default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
  v_done boolean;
begin
  if not holdfast.may_see(p_id, v_user) then
    perform holdfast.refuse('HF002', format('There is no job %s.', p_id), 'id');
  end if;
  v_done := holdfast.cancel_one(p_id, p_reason, holdfast.now());
  return jsonb_build_object('cancelled', v_done, 'status', holdfast.job_status(p_id));
end $$;

-- Whether this call cancelled it. Takes locks in the order of leases.sql.
create or replace function holdfast.cancel_one(p_job_id uuid, p_reason text, p_now timestamptz) returns boolean
language plpgsql set search_path = '' as $$
declare
  v_task holdfast.tasks;
  v_error jsonb := holdfast.error_in('cancel', jsonb_build_object('message', coalesce(p_reason, 'Cancelled.')));
  v_lanes bigint[];
  v_ended uuid[];
begin
  select * into v_task from holdfast.tasks t where t.id = p_job_id and t.job_id is null for update;
  if found then
    perform holdfast.after_ended(case when v_task.status = 'running' then array[v_task.lane_id] end,
      holdfast.end_task(v_task, 'cancelled', null, v_error, false, p_now), p_now);
    perform holdfast.announce_ended(array[p_job_id]);
    perform holdfast.tell_cancelled(v_task.status = 'running');
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
    update holdfast.tasks t set status = 'cancelled', error = v_error, finished_at = p_now, nonce = null, lease_until = null
    from alive a where t.id = a.id
    returning t.id, case when a.status = 'running' then t.lane_id end as lane_id
  )
  select array_agg(e.id), array_agg(e.lane_id) filter (where e.lane_id is not null)
  into v_ended, v_lanes from ended e;
  -- All tasks that were alive have ended, so the edges between them have nothing left to decide.
  update holdfast.edges e set satisfied = true where e.job_id = p_job_id and not e.satisfied;
  perform holdfast.after_ended(v_lanes, holdfast.count_tasks(v_ended, p_now), p_now);
  perform holdfast.tell_cancelled(v_lanes is not null);
  return true;
end $$;

-- Workers look after their leases at once instead of with their next beat. One notification however many were cancelled.
create or replace function holdfast.tell_cancelled(p_running boolean) returns void
language plpgsql set search_path = '' as $$
begin
  if p_running then
    perform pg_notify('holdfast', 'cancel');
  end if;
end $$;

-- One task of a job; its children follow the policy of their edges.
create or replace function holdfast.cancel_task(p_id uuid, p_reason text default null) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
  v_now timestamptz := holdfast.now();
  v_job uuid := (select t.job_id from holdfast.tasks t where t.id = p_id);
  v_task holdfast.tasks;
begin
  if not holdfast.may_see(coalesce(v_job, p_id), v_user) then
    perform holdfast.refuse('HF002', format('There is no task %s.', p_id), 'id');
  end if;
  if v_job is null then
    return holdfast.cancel_one(p_id, p_reason, v_now);
  end if;
  perform pg_current_xact_id();
  perform from holdfast.jobs j where j.id = v_job for update;
  select * into v_task from holdfast.tasks t
  where t.id = p_id and t.status || '' in ('waiting', 'scheduled', 'ready', 'running') for update;
  if not found then
    return false;
  end if;
  perform holdfast.end_task(v_task, 'cancelled', null,
    holdfast.error_in('cancel', jsonb_build_object('message', coalesce(p_reason, 'Cancelled.'))), false, v_now);
  perform holdfast.after_ended(case when v_task.status = 'running' then array[v_task.lane_id] end,
    holdfast.settle(array[p_id], v_now), v_now);
  perform holdfast.tell_cancelled(v_task.status = 'running');
  return true;
end $$;

-- Live jobs that fit the filter {owner, type, queue, labels, batch, ids}, up to p_limit; answers how many. Call again until it
-- answers 0. One that would have to look at more than a million others before it finds any is refused; cancel_step says where to go on.
create or replace function holdfast.cancel_jobs(p_filter jsonb, p_reason text default null, p_limit integer default 1000)
returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_step jsonb;
  v_from jsonb;
begin
  for v_round in 1 .. 10 loop
    v_step := holdfast.cancel_step(p_filter, p_reason, p_limit, v_from);
    v_from := nullif(v_step -> 'next', 'null');
    -- Ids of another step would not follow the lock order.
    if v_step -> 'cancelled' <> '0' or v_from is null then
      return (v_step -> 'cancelled')::int;
    end if;
  end loop;
  perform holdfast.refuse('HF004', 'None of those that were looked at fit, and there are more.', 'filter',
    'Use cancel_step, which says where to go on, or name an owner, a batch or ids.');
  return null;
end $$;

call holdfast.allow('holdfast_worker', 'cancel_job', 'cancel_task', 'cancel_jobs');
call holdfast.allow('service_role', 'cancel_job', 'cancel_task', 'cancel_jobs');
call holdfast.allow('authenticated', 'cancel_job', 'cancel_task', 'cancel_jobs');
