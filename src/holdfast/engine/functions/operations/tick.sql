-- Tick: all work that becomes due with time, in bounded steps that any number of callers can run at once.
--
-- Scheduled tasks become ready, expired leases are reclaimed, tasks past their latest start are cancelled, ended jobs
-- move to the history, and daily partitions are created and dropped. Claims also do the first two. Every step selects
-- rows with `skip locked` and checks them again under the lock. A row that fails because of its data is set aside and
-- does not stop the others (maintenance_problems.sql).
--
-- The horizon is the time up to which the last sweep looked. The next sweep starts a little before it, so that it does
-- not walk the dead index entries of finished tasks again. The horizon is a hint: every half minute a sweep looks at
-- all rows.

-- Promotes due tasks and reclaims expired leases, at most every 200 ms. Claims call it.
create or replace function holdfast.sweep_due_tasks(p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_now bigint := extract(epoch from p_now) * 1000000;
  v_at bigint := (select last_value from holdfast.sweep_horizon_us);
  v_full bigint := (select last_value from holdfast.last_full_sweep_us);
  v_from timestamptz := '-infinity';
begin
  if v_at between v_now - 200000 and v_now then
    return;
  end if;
  if v_full between v_now - 30000000 and v_now and v_at <= v_now then
    v_from := 'epoch'::timestamptz + v_at * interval '1 microsecond';
  end if;
  if exists (select from holdfast.schedules s where s.paused_at is null and s.next_at <= p_now) then
    perform holdfast.tick_schedules(100);
  end if;
  -- A sweep that reached its limit is not complete: the next call continues from the same place.
  if (holdfast.promote_due_tasks(v_from - interval '1 minute', p_now, 1000) < 1000)
    and (holdfast.reclaim_expired_leases(v_from - interval '2 seconds', p_now, 200) < 200) then
    perform setval('holdfast.sweep_horizon_us', v_now);
    if v_from = '-infinity' then
      perform holdfast.expire_unstarted_tasks(p_now, 200), setval('holdfast.last_full_sweep_us', v_now);
    end if;
  end if;
end $$;

-- Makes due scheduled tasks ready, in the order of their due times.
create or replace function holdfast.promote_due_tasks(
  p_from timestamptz, p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  v_paused uuid[] := holdfast.list_paused_subjects('scheduled task', p_now)::uuid[];
  v_count integer;
  v_lanes bigint[];
begin
  begin
    with due as materialized (
      select t.id from holdfast.tasks t
      where t.status = 'scheduled' and t.due_at >= p_from and t.due_at <= p_now and t.id <> all (v_paused)
      order by t.due_at limit p_limit
      for update skip locked
    ), ready as (
      update holdfast.tasks t set status = 'ready', pos = nextval('holdfast.task_positions')
      from due d where t.id = d.id
      returning t.lane_id
    )
    select count(*)::int, array_agg(distinct r.lane_id) into v_count, v_lanes from ready r;
  exception when others then
    if holdfast.is_temporary_error(sqlstate) then
      raise;
    end if;
    return holdfast.run_isolated('scheduled task', 'select holdfast.promote_tasks($1::uuid[], $2)', array(
      select t.id::text from holdfast.tasks t
      where t.status = 'scheduled' and t.due_at >= p_from and t.due_at <= p_now and t.id <> all (v_paused)
      order by t.due_at limit p_limit), p_now);
  end;
  if v_count > 0 then
    perform holdfast.wake_workers(v_lanes);
  end if;
  return v_count;
end $$;

-- Makes these scheduled tasks ready if they are still due. Returns their number.
create or replace function holdfast.promote_tasks(p_ids uuid[], p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_count integer;
  v_lanes bigint[];
begin
  with due as materialized (
    select t.id from holdfast.tasks t
    where t.id = any (p_ids) and t.status || '' = 'scheduled' and t.due_at <= p_now for update skip locked
  ), ready as (
    update holdfast.tasks t set status = 'ready', pos = nextval('holdfast.task_positions')
    from due d where t.id = d.id
    returning t.lane_id
  )
  select count(*)::int, array_agg(distinct r.lane_id) into v_count, v_lanes from ready r;
  if v_count > 0 then
    perform holdfast.wake_workers(v_lanes);
  end if;
  return v_count;
end $$;

-- Reclaims expired leases. Returns their number.
create or replace function holdfast.reclaim_expired_leases(
  p_from timestamptz, p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
begin
  return holdfast.run_isolated('lease', 'select holdfast.reclaim_leases($1::uuid[], $2)',
    holdfast.list_expired_leases(p_from, p_now, p_limit), p_now);
end $$;

-- Lists the tasks whose leases expired from p_from to p_now, without those that are set aside.
create or replace function holdfast.list_expired_leases(p_from timestamptz, p_now timestamptz, p_limit integer)
returns text[]
language plpgsql stable set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_paused uuid[] := holdfast.list_paused_subjects('lease', p_now)::uuid[];
begin
  return array(
    select t.id::text from holdfast.tasks t
    where t.status = 'running' and t.lease_until >= p_from and t.lease_until <= p_now and t.id <> all (v_paused)
    order by t.lease_until limit p_limit);
end $$;

-- Reclaims the leases of these tasks if they are still expired. An attempt whose lease was renewed up to its time limit
-- has failed. Every other attempt was lost, which is not charged: a worker died or froze, a connection broke, or the
-- clock of the server jumped. Returns their number.
create or replace function holdfast.reclaim_leases(p_ids uuid[], p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_one record;
  v_task holdfast.tasks;
  v_end record;
  v_lanes bigint[] := '{}';
  v_effects jsonb := '[]';
  v_ids uuid[] := '{}';
begin
  for v_one in select * from holdfast.list_overdue_attempts(p_ids) loop
    if v_one.job_id is not null then
      perform from holdfast.jobs j where j.id = v_one.job_id for update skip locked;
      continue when not found;
    end if;
    select * into v_task from holdfast.tasks t
    where t.id = v_one.id and t.status || '' = 'running' and t.lease_until <= p_now for update skip locked;
    continue when not found;
    select * into v_end from holdfast.apply_attempt_outcome(v_task, case when v_one.overdue then 'fail'
      else 'lost' end,
      case when v_one.overdue then '{"type": "TimedOut", "message": "The attempt reached its time limit."}'::jsonb
        else '{"message": "The worker stopped renewing its lease."}'::jsonb end, false, p_now);
    v_lanes := v_lanes || v_end.lane;
    v_effects := v_effects || coalesce(v_end.effects, '[]');
    if v_end.ended then
      v_effects := v_effects || holdfast.resolve_dependencies(array[v_one.id], p_now);
    end if;
    v_ids := v_ids || v_one.id;
  end loop;
  perform holdfast.notify_job_waiters(v_ids);
  perform holdfast.apply_task_end_effects(v_lanes, v_effects, p_now);
  return cardinality(v_ids);
end $$;

-- Lists tasks in the order in which they are locked. `overdue`: the lease was renewed, and lasted to the time limit.
create or replace function holdfast.list_overdue_attempts(p_ids uuid[])
returns table (id uuid, job_id uuid, overdue boolean)
language plpgsql stable set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
  return query
  select t.id, t.job_id, t.lease_until >= t.started_at + k.timeout_s * interval '1 second'
    and t.lease_until > t.started_at + k.lease_s * interval '1 second'
  from holdfast.tasks t
  left join holdfast.lanes l on l.id = t.lane_id
  left join holdfast.task_policies k on k.id = l.policy_id
  where t.id = any (p_ids) order by t.job_id is not null, t.job_id, t.id;
end $$;

-- Cancels tasks that did not start before their expires_at, with error type Expired. Returns their number.
create or replace function holdfast.expire_unstarted_tasks(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_paused uuid[] := holdfast.list_paused_subjects('expired task', p_now)::uuid[];
begin
  return holdfast.run_isolated('expired task', 'select holdfast.expire_tasks($1::uuid[], $2)', array(
    select t.id::text from holdfast.tasks t
    where t.start_before <= p_now and t.status || '' in ('waiting', 'scheduled', 'ready')
      and t.id <> all (v_paused)
    order by t.job_id is not null, t.job_id, t.id limit p_limit), p_now);
end $$;

-- Cancels these tasks if they have not started and are past their latest start. Returns their number.
create or replace function holdfast.expire_tasks(p_ids uuid[], p_now timestamptz) returns integer
language plpgsql set search_path = '' as $$
declare
  v_one record;
  v_task holdfast.tasks;
  v_effects jsonb := '[]';
  v_ids uuid[] := '{}';
begin
  for v_one in
    select t.id, t.job_id from holdfast.tasks t where t.id = any (p_ids) order by t.job_id is not null, t.job_id, t.id
  loop
    if v_one.job_id is not null then
      perform from holdfast.jobs j where j.id = v_one.job_id for update skip locked;
      continue when not found;
    end if;
    select * into v_task from holdfast.tasks t
    where t.id = v_one.id and t.start_before <= p_now and t.status || '' in ('waiting', 'scheduled', 'ready')
    for update skip locked;
    continue when not found;
    v_effects := v_effects || holdfast.end_task(v_task, 'cancelled', null, jsonb_build_object('type', 'Expired',
      'message', format('Did not start before %s.', v_task.start_before)), false, p_now);
    if v_one.job_id is not null then
      v_effects := v_effects || holdfast.resolve_dependencies(array[v_one.id], p_now);
    end if;
    v_ids := v_ids || v_one.id;
  end loop;
  perform holdfast.notify_job_waiters(v_ids);
  perform holdfast.apply_task_end_effects(null, v_effects, p_now);
  return cardinality(v_ids);
end $$;

-- Returns the seconds until the next task, lease, limit or schedule becomes due without a notification; null when
-- nothing is pending.
create or replace function holdfast.get_seconds_until_next_due(p_queues text[], p_types text[], p_now timestamptz)
returns double precision
language plpgsql stable set search_path = '' set jit = off set enable_seqscan = off as $$
declare
  v_from timestamptz := 'epoch'::timestamptz + (select last_value
    from holdfast.sweep_horizon_us) * interval '1 microsecond';
  v_due timestamptz;
  v_lease timestamptz;
  v_limit timestamptz;
  v_schedule timestamptz := (select min(s.next_at) from holdfast.schedules s where s.paused_at is null
    and s.next_at < 'infinity');
begin
  select t.due_at into v_due from holdfast.tasks t
  where t.status = 'scheduled' and t.due_at >= v_from - interval '1 minute' order by t.due_at limit 1;
  select t.lease_until into v_lease from holdfast.tasks t
  where t.status = 'running' and t.lease_until >= v_from - interval '2 seconds' order by t.lease_until limit 1;
  -- Ready tasks behind a limit: the pause of a key ends and rates refill without a notification.
  if exists (select from holdfast.limit_counters) then
    select min(greatest(i.paused_until, p_now + coalesce(1 / r.rate, 1) * interval '1 second')) into v_limit
    from (
      select l.limit_ids from holdfast.lanes l
      where l.queue = any (p_queues) and (p_types is null or l.type = any (p_types)) and l.limit_ids is not null
        and exists (select from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor)
      limit 400
    ) as l
    cross join lateral unnest(l.limit_ids) as u (id)
    cross join lateral (select i.rule, i.paused_until from holdfast.limit_counters i where i.id = u.id
      order by i.version desc limit 1) as i
    join holdfast.limit_rules r on r.name = i.rule;
  end if;
  v_limit := least(v_limit, (select min(k.until) from holdfast.paused_limit_keys k where k.until > p_now));
  v_due := least(v_due, v_lease, v_limit, v_schedule);
  return case when v_due is not null then greatest(extract(epoch from v_due - p_now), 0.01) end;
end $$;

-- All maintenance, up to p_limit rows per step. Any number of callers may run it at once: workers, pg_cron, or a
-- person. Returns what it did, and `more` if there is more to do now: then call it again. A step that fails does not
-- stop the others.
create or replace function holdfast.tick(p_limit integer default 1000) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_report jsonb;
  v_step record;
begin
  if p_limit is null or p_limit not between 1 and 100000 then
    perform holdfast.raise_error('HF004', format('limit must be from 1 to 100000, got %s.', p_limit), 'limit');
  end if;
  v_report := holdfast.run_tick_step('partitions_created', 'holdfast.create_day_partitions($1)', v_now, p_limit);
  if coalesce(v_report ->> 'partitions_created', '0') = '0' then
    v_report := v_report || holdfast.run_tick_step('partitions_dropped', 'holdfast.drop_expired_partitions($1)', v_now,
      p_limit);
  end if;
  if coalesce(v_report ->> 'partitions_created', '0') <> '0'
    or coalesce(v_report ->> 'partitions_dropped', '0') <> '0' then
    return v_report || jsonb_build_object('more', true);
  end if;
  for v_step in select * from (values
    ('promoted', 'holdfast.promote_due_tasks(''-infinity'', $1, $2)'),
    ('reclaimed', 'holdfast.reclaim_expired_leases(''-infinity'', $1, $2)'),
    ('expired', 'holdfast.expire_unstarted_tasks($1, $2)'),
    ('archived', 'holdfast.archive_jobs($1, $2)'),
    ('deleted', 'holdfast.delete_expired_jobs($1, $2) + holdfast.delete_expired_rows($1, $2)
      + holdfast.delete_old_maintenance_problems($1, $2)'),
    ('callbacks', 'holdfast.retry_batch_callbacks($1, $2)'),
    ('cursors_repaired', 'holdfast.lower_wrong_lane_cursors()'),
    ('lanes_removed', 'holdfast.remove_idle_lanes($1, $2)')) as s (name, call)
  loop
    v_report := v_report || holdfast.run_tick_step(v_step.name, v_step.call, v_now, p_limit);
  end loop;
  -- Other capabilities have a step of their own, if they are installed. Its result is reported as text.
  for v_step in
    select name from unnest(
      '{tick_messages,tick_schedules,tick_artifacts,tick_access,tick_sessions,tick_operations,tick_webhooks,
        tick_providers,tick_erasures,tick_alerts}'::text[]
      ) as name where to_regprocedure(format('holdfast.%I(integer)', name)) is not null
  loop
    v_report := v_report || holdfast.run_tick_step(v_step.name, format('holdfast.%I($2)::text', v_step.name), v_now,
      p_limit);
  end loop;
  return v_report || jsonb_build_object('more', exists (
    select from jsonb_each(v_report) as d where jsonb_typeof(d.value) = 'number'
      and (d.value #>> '{}')::numeric >= p_limit));
end $$;

call holdfast.grant_execute('holdfast_worker', 'tick');
call holdfast.grant_execute('service_role', 'tick');
