-- Claim: free slots in, leased tasks out.
--
-- The cursor. A task that becomes ready takes the next position, so positions below the lowest ready one of a
-- lane are over, and a claim that starts at a cursor there never walks the dead index entries an old snapshot
-- keeps. The caller holds one hint per lane, [safe, seen, xid, at, exact, looked, idle], and only echoes it:
-- scans start at `safe`; `seen` is the lowest ready position at the moment `at`, when `xid` was the next
-- transaction id. Once every transaction older than that is over, nothing can appear below `seen` any more:
-- later ones take higher positions (they have their id before their first position). Then `exact` and `safe`
-- move up to `seen`, or to the lowest ready position found now if that is lower, as after a claim that rolled back.
-- A transaction that stays open would hold the cursor back for its whole life, so `safe` moves on after a
-- quarter of a second; to find what such a transaction commits later, a scan starts at the stored cursor, which is
-- exact, every five seconds, and five times a second while the lane is empty. `tick` checks the stored ones.
--
-- Lanes without limits are read without a lock. Lanes with limits are served least recently served first, and
-- only when all their counters could be locked at once without waiting.

create or replace function holdfast.limits_for(p_queue text, p_type text, p_limit_key text) returns bigint[]
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
    select id into v_id from holdfast.limits
    where rule = v_rule.name and coalesce(key, '') = case when v_rule.per_key then p_limit_key else '' end;
    if not found then
      insert into holdfast.limits (rule, key) values (v_rule.name, case when v_rule.per_key then p_limit_key end)
      on conflict do nothing
      returning id into v_id;
      if v_id is null then
        select id into strict v_id from holdfast.limits
        where rule = v_rule.name and coalesce(key, '') = case when v_rule.per_key then p_limit_key else '' end;
      end if;
    end if;
    v_ids := v_ids || v_id;
  end loop;
  return nullif(array(select i from unnest(v_ids) as i order by i), '{}');
end $$;

-- The counters of a lane, found out by its first claim: a submit must not make others wait for its transaction.
-- False while another claim is at it.
create or replace function holdfast.know_limits(p_lane bigint, out known boolean, out ids bigint[])
language plpgsql set search_path = '' as $$
begin
  perform from holdfast.lanes l where l.id = p_lane for update skip locked;
  known := found;
  if known then
    update holdfast.lanes l set limit_ids = holdfast.limits_for(l.queue, l.type, l.limit_key), limits_known = true
    where l.id = p_lane returning l.limit_ids into ids;
  end if;
end $$;

-- Lanes that a worker may serve now, the most urgent head first, each with its hint moved on.
create or replace function holdfast.open_lanes(p_queues text[], p_types text[], p_cursors jsonb, p_now timestamptz)
returns table (lane_id bigint, queue text, type text, limit_ids bigint[], limits_known boolean, lease_s double precision, timeout_s double precision,
  attempts integer, stored bigint, head bigint, safe bigint, hint jsonb)
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  with now as materialized (
    select pg_snapshot_xmin(s)::text::bigint as oldest, pg_snapshot_xmax(s)::text::bigint as next,
      extract(epoch from p_now)::double precision as at, (select last_value from holdfast.positions) as top
    from pg_current_snapshot() as s
  ), mine as materialized (
    select l.*, k.lease_s, k.timeout_s, k.attempts, coalesce(q.ageing_s, 60) as ageing_s,
      h.safe, h.seen, h.xid, h.at, coalesce(h.exact, l.cursor) as exact, h.looked,
      h.safe is null or h.looked < n.at - case h.idle when 0 then 5 else 0.2 end as look,
      h.xid <= n.oldest as over, h.xid <= n.oldest or h.at < n.at - 0.25 as passed
    from now n cross join holdfast.lanes l
    join holdfast.kinds k on k.id = l.kind_id
    left join holdfast.queues q on q.name = l.queue
    -- `offset 0` keeps the hint from being looked up once per field. One above all positions is from before a failover that
    -- lost some: as good as none.
    cross join lateral (select p_cursors -> (l.id::text) as c offset 0) as c
    left join lateral (
      select (c ->> 0)::bigint as safe, (c ->> 1)::bigint as seen, (c ->> 2)::bigint as xid, (c ->> 3)::double precision as at,
        (c ->> 4)::bigint as exact, (c ->> 5)::double precision as looked, (c ->> 6)::int as idle
      where (c ->> 1)::bigint <= n.top) as h on true
    where l.queue = any (p_queues) and (p_types is null or l.type = any (p_types)) and q.paused_at is null
  ), found as (
    select m.*, t.pos as head, t.due_at,
      greatest(least(case when m.look then coalesce(m.safe, m.cursor) else m.safe end, t.pos),
        case when m.passed then least(t.pos, m.seen) end) as moved,
      greatest(least(m.exact, t.pos), case when m.over then least(t.pos, m.seen) end) as sure
    from mine m
    left join lateral (
      select t.pos, t.due_at from holdfast.tasks t
      where t.lane_id = m.id and t.status = 'ready' and t.pos >= case when m.look then m.cursor else m.safe end
      order by t.pos limit 1
    ) as t on true
  )
  select f.id, f.queue, f.type, f.limit_ids,
    f.limits_known or not exists (select from holdfast.limit_rules), f.lease_s, f.timeout_s, f.attempts, f.cursor, f.head, f.moved,
    jsonb_build_array(f.moved,
      case when f.passed or f.safe is null then coalesce(f.head, n.top) else f.seen end,
      case when f.passed or f.safe is null then n.next else f.xid end,
      case when f.passed or f.safe is null then n.at else f.at end,
      f.sure, case when f.look then n.at else f.looked end, case when f.head is null then 1 else 0 end)
  from found f cross join now n
  order by f.head is null,
    f.priority + coalesce(floor(extract(epoch from p_now - f.due_at) / f.ageing_s), 0) desc,
    f.served_at nulls first, f.head;
end $$;

-- Takes up to so many tasks of each lane. The limits stand in a materialized query of its own: as a subquery of the
-- update it could be run again per row, and take everything. Rows are found again by their place, which is locked.
create or replace function holdfast.take(
  p_lanes bigint[], p_safes bigint[], p_wants integer[], p_leases double precision[],
  p_nonce bigint, p_worker_id bigint, p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, crashes integer, args jsonb, parents jsonb, header jsonb)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return query
  with picked as materialized (
    select f.place, u.lease from unnest(p_lanes, p_safes, p_wants, p_leases) as u (lane_id, safe, want, lease)
    cross join lateral (
      select t.ctid as place from holdfast.tasks t
      where t.lane_id = u.lane_id and t.status = 'ready' and t.pos >= u.safe
        and (t.start_before is null or t.start_before > p_now)
      order by t.pos limit u.want
      for update skip locked
    ) as f
  ), taken as (
    update holdfast.tasks t
    set status = 'running', attempt = t.attempt + 1, nonce = p_nonce, worker_id = p_worker_id, started_at = p_now,
      lease_until = p_now + p.lease * interval '1 second'
    from picked p
    where t.ctid = p.place
    returning t.id, t.job_id, t.lane_id, t.name, t.attempt, t.crashes, t.args, t.waits, t.pos
  ), begun as (
    select j.id from holdfast.jobs j
    where j.id in (select t.job_id from taken t where t.job_id is not null) and j.status = 'queued'
    for update skip locked
  ), told as (
    update holdfast.jobs j set status = 'running', started_at = p_now, event_seq = j.event_seq + 1
    from begun b where j.id = b.id
    returning j.id, j.event_seq, j.owner
  ), written as (
    insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
    select o.id, o.event_seq, p_now, p_now + interval '7 days', o.owner, 'job', '{"status": "running"}' from told o
  )
  select t.id, t.job_id, t.lane_id, t.name, t.attempt, t.crashes::int, t.args,
    case when t.waits is not null then holdfast.outputs_of_parents(t.id) end, null::jsonb
  from taken t order by t.pos;
end $$;

create or replace function holdfast.outputs_of_parents(p_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_object_agg(p.name, p.output)
  from holdfast.edges e join holdfast.tasks p on p.id = e.parent_id
  where e.child_id = p_id);
end $$;

-- Counts tasks of a lane as started before they are taken: as many as its limits let through and as are there. The
-- counters stay locked until the end of the transaction; when they cannot all be locked at once, none.
create or replace function holdfast.reserve(p_lane bigint, p_safe bigint, p_limits bigint[], p_want integer, p_now timestamptz) returns integer
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_limit record;
  v_locked integer := 0;
begin
  for v_limit in
    select l.asleep_until, r.max_running - l.running as free,
      floor(holdfast.tokens_now(l.tokens, l.refilled_at, r.rate, r.burst, p_now))::int as tokens
    from holdfast.limits l join holdfast.limit_rules r on r.name = l.rule
    where l.id = any (p_limits) order by l.id
    for update of l skip locked
  loop
    v_locked := v_locked + 1;
    p_want := least(p_want, v_limit.free, v_limit.tokens, case when v_limit.asleep_until > p_now then 0 end);
  end loop;
  if p_want <= 0 or v_locked < cardinality(p_limits) then
    return 0;
  end if;
  select count(*) into p_want from (
    select from holdfast.tasks t where t.lane_id = p_lane and t.status = 'ready' and t.pos >= p_safe order by t.pos limit p_want) as ready;
  update holdfast.limits l set running = l.running + p_want,
    tokens = holdfast.tokens_now(l.tokens, l.refilled_at, r.rate, r.burst, p_now) - p_want,
    refilled_at = case when r.rate is not null then p_now end
  from holdfast.limit_rules r
  where r.name = l.rule and l.id = any (p_limits);
  return p_want;
end $$;

-- Not pinned, so that it is inlined; every name in it is qualified or built in.
create or replace function holdfast.tokens_now(
  p_tokens double precision, p_refilled_at timestamptz, p_rate double precision, p_burst double precision, p_now timestamptz)
returns double precision
language sql immutable as $$
  select case when p_rate is null then null else least(coalesce(p_burst, greatest(p_rate, 1)),
    coalesce(p_tokens, p_burst, greatest(p_rate, 1))
      + p_rate * greatest(extract(epoch from p_now - coalesce(p_refilled_at, p_now))::pg_catalog.float8, 0)) end
$$;

-- Leases end; counters go down. One statement, in the order of ids, after all tasks and jobs have been locked.
create or replace function holdfast.count_ended(p_lanes bigint[]) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
begin
  with ended as (
    select i.id, count(*)::int as n
    from unnest(p_lanes) as u (lane_id)
    join holdfast.lanes l on l.id = u.lane_id
    cross join lateral unnest(l.limit_ids) as i (id)
    group by i.id
  ), held as materialized (
    select l.id, e.n from holdfast.limits l join ended e on e.id = l.id order by l.id for update of l
  )
  update holdfast.limits l set running = greatest(l.running - h.n, 0) from held h where l.id = h.id;
end $$;

-- The batch of a worker: rows of tasks, then one row whose header tells nonce, lanes, cursors and when to ask again.
create or replace function holdfast.claim(
  p_worker_id bigint, p_slots integer, p_queues text[], p_types text[], p_cursors jsonb, p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, crashes integer, args jsonb, parents jsonb, header jsonb)
language plpgsql set search_path = '' as $$
declare
  v_nonce bigint := holdfast.new_nonce();
  v_left integer := p_slots;
  v_got integer;
  v_lane record;
  v_lanes jsonb := '{}';
  v_seen bigint[] := '{}';
  v_hints jsonb[] := '{}';
  v_limited bigint[] := '{}';
  v_safes bigint[] := '{}';
  v_wants integer[] := '{}';
  v_leases double precision[] := '{}';
begin
  for v_lane in select * from holdfast.open_lanes(p_queues, p_types, p_cursors, p_now) loop
    v_seen := v_seen || v_lane.lane_id;
    v_hints := v_hints || v_lane.hint;
    if (v_lane.hint ->> 4)::bigint > v_lane.stored + 10000 then
      perform holdfast.store_cursor(v_lane.lane_id, (v_lane.hint ->> 4)::bigint);
    end if;
    continue when v_lane.head is null or v_left <= 0;
    if not v_lane.limits_known then
      select k.known, k.ids into v_lane.limits_known, v_lane.limit_ids from holdfast.know_limits(v_lane.lane_id) as k;
      continue when not v_lane.limits_known;
    end if;
    v_lane.lease_s := least(v_lane.lease_s, v_lane.timeout_s + 5);
    if v_lane.limit_ids is null then
      return query select * from holdfast.take(array[v_lane.lane_id], array[v_lane.safe], array[v_left],
        array[v_lane.lease_s], v_nonce, p_worker_id, p_now);
      get diagnostics v_got = row_count;
    else
      v_got := holdfast.reserve(v_lane.lane_id, v_lane.safe, v_lane.limit_ids, v_left, p_now);
      continue when v_got = 0;
      v_limited := v_limited || v_lane.lane_id;
      v_safes := v_safes || v_lane.safe;
      v_wants := v_wants || v_got;
      v_leases := v_leases || v_lane.lease_s;
    end if;
    continue when v_got = 0;
    v_left := v_left - v_got;
    v_lanes := v_lanes || jsonb_build_object(v_lane.lane_id, jsonb_build_array(
      v_lane.queue, v_lane.type, v_lane.lease_s, v_lane.timeout_s, v_lane.attempts));
  end loop;
  if v_limited <> '{}' then
    v_got := (select sum(w) from unnest(v_wants) as w);
    for id, job_id, lane_id, name, attempt, crashes, args, parents, header in
      select * from holdfast.take(v_limited, v_safes, v_wants, v_leases, v_nonce, p_worker_id, p_now)
    loop
      v_wants[array_position(v_limited, lane_id)] := v_wants[array_position(v_limited, lane_id)] - 1;
      v_got := v_got - 1;
      return next;
    end loop;
    if v_got > 0 then
      -- Others held some of them, or they are past their latest start: give back what was counted too much.
      perform holdfast.count_ended(array(select u.lane_id from unnest(v_limited, v_wants) as u (lane_id, n), generate_series(1, u.n)));
      v_left := v_left + v_got;
    end if;
    perform holdfast.mark_served(v_limited, p_now);
  end if;
  id := null; job_id := null; lane_id := null; name := null; attempt := null; crashes := null; args := null; parents := null;
  header := jsonb_build_object('nonce', v_nonce, 'lanes', v_lanes, 'got', p_slots - v_left,
    'cursors', coalesce((select jsonb_object_agg(h.lane_id, h.hint) from unnest(v_seen, v_hints) as h (lane_id, hint)), '{}'));
  return next;
end $$;

-- Fairness needs to know roughly who was served last, so a lane that somebody else writes is passed over.
create or replace function holdfast.mark_served(p_lanes bigint[], p_now timestamptz) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
begin
  with free as materialized (select l.id from holdfast.lanes l where l.id = any (p_lanes) order by l.id for update skip locked)
  update holdfast.lanes l set served_at = p_now from free f where l.id = f.id;
end $$;

create or replace function holdfast.store_cursor(p_lane bigint, p_safe bigint) returns void
language plpgsql volatile set search_path = '' as $$
begin
  with free as materialized (
    select l.id from holdfast.lanes l where l.id = p_lane and l.cursor < p_safe for update skip locked)
  update holdfast.lanes l set cursor = p_safe from free where l.id = free.id;
end $$;
