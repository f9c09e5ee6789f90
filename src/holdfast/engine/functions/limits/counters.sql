-- Limit counters: how many tasks of a limit run, and how many tokens of its rate are left.
--
-- Every change of a counter writes a new version of the row with a higher number in its index. The newest version is
-- found first, and versions that an old snapshot keeps alive are never read. Comparisons use `>=` and not `=`:
-- another transaction may have written a newer version while this one waited for the lock.

-- Return the tokens of a rate limit at p_now. Not pinned to a search_path, so that it is inlined; every name in it is
-- qualified or built in.
create or replace function holdfast.compute_available_tokens(
  p_tokens double precision, p_refilled_at timestamptz, p_rate double precision, p_burst double precision,
    p_now timestamptz)
returns double precision
language sql immutable as $$
  select case when p_rate is null then null else least(coalesce(p_burst, greatest(p_rate, 1)),
    coalesce(p_tokens, p_burst, greatest(p_rate, 1))
      + p_rate * greatest(extract(epoch from p_now - coalesce(p_refilled_at, p_now))::pg_catalog.float8, 0)) end
$$;

-- Lock the limit counters of lanes, and return how many tasks each lane may give, at most p_max_per_lane. Lock the
-- counters of all lanes at once and skips counters that another transaction has locked; a lane gives no task unless all
-- of its counters could be locked.
create or replace function holdfast.lock_limits_and_count_free_slots(p_lanes holdfast.claim_lane[],
  p_max_per_lane integer,
  p_now timestamptz) returns integer[]
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  v_ids bigint[];
  v_free integer[];
  v_counter_id bigint;
  v_count integer;
  v_counts integer[] := '{}';
begin
  with newest as materialized (
    select n.id, n.version from (select distinct i as id from unnest(p_lanes) as u, unnest(u.limit_ids) as i) as w
    cross join lateral (select l.id, l.version from holdfast.limit_counters l where l.id = w.id order by l.version desc
      limit 1) as n
  ), locked as materialized (
    select l.id, least(r.max_running - l.running, floor(holdfast.compute_available_tokens(l.tokens, l.refilled_at,
      r.rate,
      r.burst, p_now))::int,
      case when l.paused_until > p_now then 0 end) as free
    from newest n join holdfast.limit_counters l on l.id = n.id and l.version >= n.version join holdfast.limit_rules r
      on r.name = l.rule
    order by l.id
    for update of l skip locked
  )
  select array_agg(h.id), array_agg(greatest(h.free, 0)) into v_ids, v_free from locked h;
  for v_n in 1 .. cardinality(p_lanes) loop
    v_count := p_max_per_lane;
    foreach v_counter_id in array coalesce(p_lanes[v_n].limit_ids, '{}') loop
      v_count := least(v_count, coalesce(v_free[array_position(v_ids, v_counter_id)], 0));
    end loop;
    foreach v_counter_id in array coalesce(p_lanes[v_n].limit_ids, '{}') loop
      exit when v_count = 0;
      v_free[array_position(v_ids, v_counter_id)] := v_free[array_position(v_ids, v_counter_id)] - v_count;
    end loop;
    v_counts[v_n] := v_count;
  end loop;
  return v_counts;
end $$;

-- Subtract ended leases from the limit counters of their lanes. One statement in the order of ids, after all tasks and
-- jobs have been locked.
create or replace function holdfast.decrement_limit_counters(p_lanes bigint[]) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off
  set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  with ended as (
    select i.id, sum(u.n)::int as n
    from (select e.lane_id, count(*) as n from unnest(p_lanes) as e (lane_id) group by e.lane_id) as u
    join holdfast.lanes l on l.id = u.lane_id
    cross join lateral unnest(l.limit_ids) as i (id)
    group by i.id
  ), newest as materialized (
    select e.id, e.n, i.version from ended e
    cross join lateral (select l.version from holdfast.limit_counters l where l.id = e.id order by l.version desc
      limit 1) as i
  ), locked as materialized (
    select l.id, e.version, e.n from newest e join holdfast.limit_counters l on l.id = e.id and l.version >= e.version
      order by l.id for update of l
  )
  update holdfast.limit_counters l set running = greatest(l.running - h.n, 0), version = l.version + 1
  from locked h where l.id = h.id and l.version >= h.version;
end $$;

-- Return the ids of the limit counters that apply to a lane, ascending. Null if no limit applies.
create or replace function holdfast.find_or_create_limit_counters(p_queue text, p_type text, p_limit_key text)
  returns bigint[]
language plpgsql set search_path = '' as $$
declare
  v_rule record;
  v_id bigint;
  v_ids bigint[] := '{}';
begin
  for v_rule in
    select r.name, r.per_key from holdfast.limit_rules r
    where (r.queue is null or r.queue = p_queue) and (r.type is null or r.type = p_type)
      and (not r.per_key or p_limit_key is not null)
    order by r.name
  loop
    -- Locked, so that it is not removed before the lane refers to it (remove_idle_limit_counters).
    select id into v_id from holdfast.limit_counters
    where rule = v_rule.name and coalesce(key, '') = case when v_rule.per_key then p_limit_key
      else '' end for key share;
    if not found then
      insert into holdfast.limit_counters (rule, key) values (v_rule.name, case when v_rule.per_key
        then p_limit_key end)
      on conflict do nothing
      returning id into v_id;
      if v_id is null then
        select id into strict v_id from holdfast.limit_counters
        where rule = v_rule.name and coalesce(key, '') = case when v_rule.per_key then p_limit_key
          else '' end for key share;
      end if;
    end if;
    v_ids := v_ids || v_id;
  end loop;
  return nullif(array(select i from unnest(v_ids) as i order by i), '{}');
end $$;

-- Store in a lane which limit counters apply to it. The first claim of the lane does this, because a submit must not
-- make others wait for its transaction. A claim waits for no one either, as it may hold counters that others wait for:
-- `assigned` is false if a counter is locked or is being created.
create or replace function holdfast.assign_limit_counters(p_lane bigint, out assigned boolean, out ids bigint[])
language plpgsql set search_path = '' as $$
declare
  v_lane holdfast.lanes;
begin
  select * into v_lane from holdfast.lanes l where l.id = p_lane for update skip locked;
  assigned := found and pg_try_advisory_xact_lock(1213154902, hashtext(coalesce(v_lane.limit_key, '')));
  if assigned then
    with existing as materialized (
      select c.id, c.version from holdfast.limit_rules r join holdfast.limit_counters c on c.rule = r.name
        and coalesce(c.key, '') = case when r.per_key then v_lane.limit_key else '' end
      where (r.queue is null or r.queue = v_lane.queue) and (r.type is null or r.type = v_lane.type)
    ), lockable as materialized (
      select c.id from existing t join holdfast.limit_counters c on c.id = t.id
        and c.version >= t.version for key share of c skip locked
    )
    select (select count(*) from existing) = (select count(*) from lockable) into assigned;
  end if;
  if assigned then
    update holdfast.lanes l set limit_ids = holdfast.find_or_create_limit_counters(l.queue, l.type, l.limit_key),
      limits_assigned = true
    where l.id = p_lane returning l.limit_ids into ids;
  end if;
end $$;

-- Pause the limit keys of tasks that were rate-limited: the key that the outcome names, else the key of the task.
create or replace function holdfast.pause_limit_keys(p_effects jsonb) returns void
language plpgsql set search_path = '' as $$
begin
  with limited as materialized (
    select coalesce(a.key, l.limit_key) as key, l.limit_ids, max(a.paused_until) as until
    from jsonb_to_recordset(p_effects) as a (lane bigint, key text, paused_until timestamptz)
    join holdfast.lanes l on l.id = a.lane
    where octet_length(coalesce(a.key, l.limit_key)) between 1 and 1000
    group by 1, 2 order by 1
  ), counters as (
    -- Only the counters of the task's own lane: they are locked already.
    update holdfast.limit_counters i set paused_until = greatest(i.paused_until, t.until) from limited t
      where i.id = any (t.limit_ids) and i.key = t.key
  )
  insert into holdfast.paused_limit_keys as k (key, until) select t.key, max(t.until) from limited t group by 1
    order by 1
  on conflict (key) do update set until = greatest(k.until, excluded.until);
end $$;
