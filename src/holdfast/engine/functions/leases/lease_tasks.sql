-- Lease ready tasks of given lanes, as their limits allow (claim.sql decides which lanes).

-- Lease up to p_max_per_lane tasks of each lane and p_max_tasks in all, as the limits of the lanes allow.
create or replace function holdfast.lease_from_lanes(
  p_lanes holdfast.claim_lane[], p_max_per_lane integer, p_max_tasks integer, p_nonce bigint, p_worker_id bigint,
    p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, suspect boolean, args jsonb,
  parents jsonb, header jsonb)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_lane holdfast.claim_lane;
  v_lanes holdfast.claim_lane[] := '{}';
  v_ids bigint[] := '{}';
  v_scan_starts bigint[] := '{}';
  v_lease_seconds double precision[] := '{}';
  v_limited boolean := false;
  v_has_watchers boolean := exists (select from holdfast.watched_jobs);
begin
  for v_n in 1 .. cardinality(p_lanes) loop
    v_lane := p_lanes[v_n];
    if not v_lane.limits_assigned and exists (select from holdfast.limit_rules) then
      select k.assigned, k.ids into v_lane.limits_assigned, v_lane.limit_ids
        from holdfast.assign_limit_counters(v_lane.id) as k;
      continue when not v_lane.limits_assigned;
    end if;
    v_lanes := v_lanes || v_lane;
    v_ids := v_ids || v_lane.id;
    v_scan_starts := v_scan_starts || v_lane.scan_start;
    v_lease_seconds := v_lease_seconds || v_lane.lease_s;
    v_limited := v_limited or v_lane.limit_ids is not null;
  end loop;
  if v_limited then
    return query select t.* from holdfast.lease_limited_tasks(v_ids, v_scan_starts,
      holdfast.lock_limits_and_count_free_slots(v_lanes, p_max_per_lane, p_now), v_lease_seconds, p_max_tasks,
      p_nonce, p_worker_id, p_now) as t where not v_has_watchers or holdfast.notify_task_started(t.id, t.job_id);
  else
    return query select t.* from holdfast.lease_ready_tasks(v_ids, v_scan_starts,
      array_fill(p_max_per_lane, array[cardinality(v_ids)]), v_lease_seconds, p_max_tasks, p_nonce,
      p_worker_id, p_now) as t where not v_has_watchers or holdfast.notify_task_started(t.id, t.job_id);
  end if;
end $$;

-- Lease up to p_lane_max_tasks tasks of each lane and p_max_tasks in all. The picked rows are in a materialized query
-- of their own: as a subquery of the update it could run again for each row and pick everything. The rows are found
-- again by their ctid, which is locked.
create or replace function holdfast.lease_ready_tasks(
  p_lanes bigint[], p_scan_starts bigint[], p_lane_max_tasks integer[], p_lease_seconds double precision[],
    p_max_tasks integer,
  p_nonce bigint, p_worker_id bigint, p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, suspect boolean, args jsonb,
  parents jsonb, header jsonb)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return query
  with picked as materialized (
    select f.place, u.lease from unnest(p_lanes, p_scan_starts, p_lane_max_tasks, p_lease_seconds) as u (lane_id,
      scan_start, want,
      lease)
    cross join lateral (
      select t.ctid as place from holdfast.tasks t
      where t.lane_id = u.lane_id and t.status = 'ready' and t.pos >= u.scan_start
        and (t.start_before is null or t.start_before > p_now)
      order by t.pos limit u.want
      for update skip locked
    ) as f
    limit p_max_tasks
  ), leased as (
    update holdfast.tasks t
    set status = 'running', attempt = t.attempt + 1, nonce = p_nonce, worker_id = p_worker_id, started_at = p_now,
      lease_until = p_now + p.lease * interval '1 second'
    from picked p
    where t.ctid = p.place
    returning t.id, t.job_id, t.lane_id, t.name, t.attempt, t.crashes, t.suspect, t.args, t.pending_parents, t.pos,
      t.owner,
      t.labels
  ), first_starts as (
    -- By primary key, whatever the planner thinks of the number of queued jobs.
    select j.id from (select distinct t.job_id from leased t where t.job_id is not null) as i
    join holdfast.jobs j on j.id = i.job_id and j.status || '' = 'queued'
    for update of j skip locked
  ), started_jobs as (
    update holdfast.jobs j set status = 'running', started_at = p_now, event_seq = j.event_seq + 1
    from first_starts b where j.id = b.id
    returning j.id, j.event_seq, j.owner
  ), inserted_events as (
    insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
    select o.id, o.event_seq, p_now, p_now + interval '7 days', o.owner, 'job', '{"status": "running"}'
      from started_jobs o
  )
  select t.id, t.job_id, t.lane_id, t.name, t.attempt, t.crashes > 0 or t.suspect is true, t.args,
    case when t.pending_parents is not null then holdfast.read_parent_outputs(t.id) end,
    case when coalesce(t.labels, j.labels) is not null or t.owner is not null
      then holdfast.build_task_header(t.owner, coalesce(t.labels, j.labels)) end
  from leased t left join holdfast.jobs j on j.id = t.job_id
  order by t.pos;
end $$;

-- Lease tasks as lease_ready_tasks does, and add them to the limit counters of their lanes, which the caller has
-- locked.
create or replace function holdfast.lease_limited_tasks(
  p_lanes bigint[], p_scan_starts bigint[], p_lane_max_tasks integer[], p_lease_seconds double precision[],
    p_max_tasks integer,
  p_nonce bigint, p_worker_id bigint, p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, suspect boolean, args jsonb,
  parents jsonb, header jsonb)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return query
  with leased as materialized (
    select t.* from holdfast.lease_ready_tasks(p_lanes, p_scan_starts, p_lane_max_tasks, p_lease_seconds, p_max_tasks,
      p_nonce,
      p_worker_id,
      p_now) as t
  ), used as (
    select i.id, sum(c.n)::int as n
    from (select t.lane_id, count(*) as n from leased t group by t.lane_id) as c
    join holdfast.lanes l on l.id = c.lane_id
    cross join lateral unnest(l.limit_ids) as i (id)
    group by i.id
  ), counted as (
    update holdfast.limit_counters l set running = l.running + u.n, version = l.version + 1,
      tokens = holdfast.compute_available_tokens(l.tokens, l.refilled_at, r.rate, r.burst, p_now) - u.n,
      refilled_at = case when r.rate is not null then p_now end
    from used u
    cross join lateral (select i.ctid as place, i.rule from holdfast.limit_counters i where i.id = u.id
      order by i.version desc limit 1) as n
    join holdfast.limit_rules r on r.name = n.rule
    where l.ctid = n.place
  )
  select * from leased;
end $$;

-- Return additional data of a task for the worker: {owner, trace, schedule}, or null without data. Jobs with an owner
-- have no schedule here: only schedules of the application are reported to Sentry.
create or replace function holdfast.build_task_header(p_owner text, p_labels jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  if p_labels is null then
    return case when p_owner is not null then jsonb_build_object('owner', p_owner) end;
  elsif p_owner is not null then
    return jsonb_strip_nulls(jsonb_build_object('owner', p_owner, 'trace', p_labels -> 'traceparent'));
  end if;
  return nullif(jsonb_strip_nulls(jsonb_build_object('trace', p_labels -> 'traceparent',
    'schedule', p_labels -> 'schedule')), '{}');
end $$;

-- Return the outputs of the parents of a task: {name: output}.
create or replace function holdfast.read_parent_outputs(p_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_object_agg(p.name, p.output)
  from holdfast.dependencies e join holdfast.tasks p on p.id = e.parent_id
  where e.child_id = p_id);
end $$;
