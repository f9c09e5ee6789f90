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
-- Lanes with a key or a share (of an owner) are many, so their hints are in their rows. They stand in rings, and the caller echoes
-- only how far it got in each: {rings: {ring: lane}}.
--
-- Lanes without limits are read without a lock. Lanes with limits give only what their counters allow, which are locked all
-- at once, without waiting, before anything is taken. Which lanes there are to serve is in claim_lanes.sql.

-- Takes up to so many tasks of each lane, and p_most in all. The limits stand in a materialized query of its own: as a subquery of the
-- update it could be run again per row, and take everything. Rows are found again by their place, which is locked.
create or replace function holdfast.take(
  p_lanes bigint[], p_safes bigint[], p_wants integer[], p_leases double precision[], p_most integer,
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
    limit p_most
  ), taken as (
    update holdfast.tasks t
    set status = 'running', attempt = t.attempt + 1, nonce = p_nonce, worker_id = p_worker_id, started_at = p_now,
      lease_until = p_now + p.lease * interval '1 second'
    from picked p
    where t.ctid = p.place
    returning t.id, t.job_id, t.lane_id, t.name, t.attempt, t.crashes, t.args, t.waits, t.pos, t.owner, t.labels
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
    case when t.waits is not null then holdfast.outputs_of_parents(t.id) end,
    case when t.owner is not null or t.labels is not null or t.job_id is not null then holdfast.header_of(t.job_id, t.owner, t.labels) end
  from taken t order by t.pos;
end $$;

-- What a worker is told about a task besides: {owner, trace}. Null when there is nothing to tell.
create or replace function holdfast.header_of(p_job uuid, p_owner text, p_labels jsonb) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  if p_job is not null then
    select j.labels into p_labels from holdfast.jobs j where j.id = p_job;
  end if;
  return nullif(jsonb_strip_nulls(jsonb_build_object('owner', p_owner, 'trace', p_labels -> 'traceparent')), '{}');
end $$;

create or replace function holdfast.outputs_of_parents(p_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_object_agg(p.name, p.output)
  from holdfast.edges e join holdfast.tasks p on p.id = e.parent_id
  where e.child_id = p_id);
end $$;

-- Takes up to p_part tasks of each lane and p_most in all, as their limits allow.
create or replace function holdfast.take_from(
  p_lanes holdfast.open_lane[], p_part integer, p_most integer, p_nonce bigint, p_worker_id bigint, p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, crashes integer, args jsonb, parents jsonb, header jsonb)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_lane holdfast.open_lane;
  v_lanes holdfast.open_lane[] := '{}';
  v_ids bigint[] := '{}';
  v_safes bigint[] := '{}';
  v_leases double precision[] := '{}';
  v_limited boolean := false;
  v_watched boolean := exists (select from holdfast.watches);
begin
  for v_n in 1 .. cardinality(p_lanes) loop
    v_lane := p_lanes[v_n];
    if not v_lane.limits_known and exists (select from holdfast.limit_rules) then
      select k.known, k.ids into v_lane.limits_known, v_lane.limit_ids from holdfast.know_limits(v_lane.id) as k;
      continue when not v_lane.limits_known;
    end if;
    v_lanes := v_lanes || v_lane;
    v_ids := v_ids || v_lane.id;
    v_safes := v_safes || v_lane.safe;
    v_leases := v_leases || v_lane.lease_s;
    v_limited := v_limited or v_lane.limit_ids is not null;
  end loop;
  if v_limited then
    return query select t.* from holdfast.take_counted(v_ids, v_safes, holdfast.allowed(v_lanes, p_part, p_now), v_leases, p_most,
      p_nonce, p_worker_id, p_now) as t where not v_watched or holdfast.announce_started(t.id, t.job_id);
  else
    return query select t.* from holdfast.take(v_ids, v_safes, array_fill(p_part, array[cardinality(v_ids)]), v_leases, p_most, p_nonce,
      p_worker_id, p_now) as t where not v_watched or holdfast.announce_started(t.id, t.job_id);
  end if;
end $$;

-- How many tasks each lane may give, at most p_part. Locks the counters of all of them at once, passing over those that
-- somebody else has; a lane whose counters are not all to be had gives nothing.
create or replace function holdfast.allowed(p_lanes holdfast.open_lane[], p_part integer, p_now timestamptz) returns integer[]
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_ids bigint[];
  v_free integer[];
  v_limit bigint;
  v_want integer;
  v_wants integer[] := '{}';
begin
  with newest as materialized (
    select n.id, n.version from (select distinct i as id from unnest(p_lanes) as u, unnest(u.limit_ids) as i) as w
    cross join lateral (select l.id, l.version from holdfast.limits l where l.id = w.id order by l.version desc limit 1) as n
  ), held as materialized (
    select l.id, least(r.max_running - l.running, floor(holdfast.tokens_now(l.tokens, l.refilled_at, r.rate, r.burst, p_now))::int,
      case when l.asleep_until > p_now then 0 end) as free
    from newest n join holdfast.limits l on l.id = n.id and l.version >= n.version join holdfast.limit_rules r on r.name = l.rule
    order by l.id
    for update of l skip locked
  )
  select array_agg(h.id), array_agg(greatest(h.free, 0)) into v_ids, v_free from held h;
  for v_n in 1 .. cardinality(p_lanes) loop
    v_want := p_part;
    foreach v_limit in array coalesce(p_lanes[v_n].limit_ids, '{}') loop
      v_want := least(v_want, coalesce(v_free[array_position(v_ids, v_limit)], 0));
    end loop;
    foreach v_limit in array coalesce(p_lanes[v_n].limit_ids, '{}') loop
      exit when v_want = 0;
      v_free[array_position(v_ids, v_limit)] := v_free[array_position(v_ids, v_limit)] - v_want;
    end loop;
    v_wants[v_n] := v_want;
  end loop;
  return v_wants;
end $$;

-- The same as `take`, and counts what was taken on the counters of its lanes, which the caller has locked.
create or replace function holdfast.take_counted(
  p_lanes bigint[], p_safes bigint[], p_wants integer[], p_leases double precision[], p_most integer,
  p_nonce bigint, p_worker_id bigint, p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, crashes integer, args jsonb, parents jsonb, header jsonb)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return query
  with taken as materialized (
    select t.* from holdfast.take(p_lanes, p_safes, p_wants, p_leases, p_most, p_nonce, p_worker_id, p_now) as t
  ), used as (
    select i.id, sum(c.n)::int as n
    from (select t.lane_id, count(*) as n from taken t group by t.lane_id) as c
    join holdfast.lanes l on l.id = c.lane_id
    cross join lateral unnest(l.limit_ids) as i (id)
    group by i.id
  ), counted as (
    update holdfast.limits l set running = l.running + u.n, version = l.version + 1,
      tokens = holdfast.tokens_now(l.tokens, l.refilled_at, r.rate, r.burst, p_now) - u.n,
      refilled_at = case when r.rate is not null then p_now end
    from used u
    cross join lateral (select i.ctid as place, i.rule from holdfast.limits i where i.id = u.id order by i.version desc limit 1) as n
    join holdfast.limit_rules r on r.name = n.rule
    where l.ctid = n.place
  )
  select * from taken;
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
--
-- Every count is a new version of a row, with a higher number in its index: the newest is the first that is found, and the ones
-- which an old snapshot keeps are never walked. `>=` and not `=`: somebody may have counted on while we waited for the lock.
create or replace function holdfast.count_ended(p_lanes bigint[]) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
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
    cross join lateral (select l.version from holdfast.limits l where l.id = e.id order by l.version desc limit 1) as i
  ), held as materialized (
    select l.id, e.version, e.n from newest e join holdfast.limits l on l.id = e.id and l.version >= e.version order by l.id for update of l
  )
  update holdfast.limits l set running = greatest(l.running - h.n, 0), version = l.version + 1
  from held h where l.id = h.id and l.version >= h.version;
end $$;

-- The batch of a worker: rows of tasks, then one row whose header tells nonce, lanes, cursors and when to ask again.
--
-- Lanes come in the order of their rank. While there are lanes with a key or a share, those of one rank take turns: each gives a
-- part of what is asked for, the next in its ring first, and what is then left over goes to whoever has more. Else
-- each lane gives what it has, the oldest head first.
create or replace function holdfast.claim(
  p_worker_id bigint, p_slots integer, p_queues text[], p_types text[], p_cursors jsonb, p_now timestamptz)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, crashes integer, args jsonb, parents jsonb, header jsonb)
language plpgsql set search_path = '' as $$
declare
  v_nonce bigint := holdfast.new_nonce();
  v_left integer := p_slots;
  v_got integer;
  v_open holdfast.open_lane;
  v_all holdfast.open_lane[] := '{}';
  v_seen bigint[] := '{}';
  v_hints jsonb[] := '{}';
  v_ringed holdfast.open_lane[] := '{}';
  v_shared holdfast.open_lane[] := '{}';
  v_rings jsonb := p_cursors -> 'rings';
  v_turns boolean;
  v_first integer;
  v_last integer;
  v_from integer;
  v_to integer;
  v_part integer;
  v_far integer;
  v_served holdfast.open_lane[] := '{}';
  v_there boolean := p_slots > 0 and exists (select from holdfast.lanes l where l.limit_key is not null or l.share is not null);
begin
  for v_open in select * from holdfast.plain_lanes(p_queues, p_types, p_cursors, p_now) loop
    v_seen := v_seen || v_open.id;
    v_hints := v_hints || v_open.hint;
    if v_open.sure > v_open.stored + 10000 then
      perform holdfast.store_cursor(v_open.id, v_open.sure);
    end if;
    if v_open.head is not null then
      v_all := v_all || v_open;
    end if;
  end loop;
  for v_round in 1 .. 10 loop
    if v_there then
      v_ringed := array(select s from holdfast.ring_lanes(p_queues, p_types, v_rings, least(v_left, 20),
        case when p_cursors -> 'rings' is null then 100000 else 400 end, p_now) as s);
      v_shared := array(select u from unnest(v_ringed) as u where u.id is not null order by u.rank desc, u.turn);
    end if;
    v_turns := v_shared <> '{}';
    if v_turns then
      v_all := array(select u from unnest(v_all || v_shared) as u order by u.rank desc, u.turn nulls first, u.head);
    end if;
    v_first := 1;
    v_far := 0;
    while v_left > 0 and v_first <= cardinality(v_all) loop
      v_last := v_first;
      while v_turns and v_last < cardinality(v_all) and v_all[v_last + 1].rank = v_all[v_first].rank loop
        v_last := v_last + 1;
      end loop;
      for v_pass in 1 .. case when v_last > v_first then 2 else 1 end loop
        v_from := v_first;
        while v_left > 0 and v_from <= v_last loop
          v_part := case v_pass when 1 then (v_left + least(v_last - v_from, 9)) / (least(v_last - v_from, 9) + 1) else v_left end;
          v_to := least(v_last, v_from + case v_pass when 1 then (v_left + v_part - 1) / v_part else 10 end - 1);
          return query select * from holdfast.take_from(v_all[v_from : v_to], v_part, v_left, v_nonce, p_worker_id, p_now);
          get diagnostics v_got = row_count;
          v_left := v_left - v_got;
          v_from := v_to + 1;
          v_far := greatest(v_far, v_to);
        end loop;
      end loop;
      v_first := v_last + 1;
    end loop;
    v_served := v_served || v_all[1 : v_far];
    if v_turns or v_ringed <> '{}' then
      v_rings := holdfast.move_rings(v_rings, v_ringed, array(select u.id from unnest(v_all[1 : v_far]) as u));
    end if;
    -- Lanes with little in them: what is left over goes to the next ones. A ring that gave less than it was asked for ends here.
    exit when v_left = 0 or not v_turns or exists (select from unnest(v_ringed) as u where u.id is null);
    v_all := '{}';
  end loop;
  id := null; job_id := null; lane_id := null; name := null; attempt := null; crashes := null; args := null; parents := null;
  header := jsonb_build_object('nonce', v_nonce, 'got', p_slots - v_left,
    'lanes', case when v_left = p_slots then '{}' else holdfast.close_claim(v_served, p_now) end,
    'cursors', coalesce((select jsonb_object_agg(h.lane_id, h.hint) from unnest(v_seen, v_hints) as h (lane_id, hint)), '{}')
      || case when v_rings is null then '{}' else jsonb_build_object('rings', v_rings) end);
  if v_left > 0 and exists (select from unnest(v_ringed) as u where u.id is null and not u.looked) then
    header := header || '{"next_s": 0.001}'; -- not all of the lanes were looked into
  end if;
  return next;
end $$;

-- What a worker needs to know about the lanes it was served from, once it is noted that they were served. Fairness needs to
-- know only roughly who was last, so a lane that somebody else writes is passed over.
create or replace function holdfast.close_claim(p_lanes holdfast.open_lane[], p_now timestamptz) returns jsonb
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  if exists (select from unnest(p_lanes) as u where u.write and u.shared) then
    with served as materialized (
      select u.*, n.place from unnest(p_lanes) as u
      left join lateral (select t.ctid as place from holdfast.turns t where t.lane_id = u.id order by t.version desc limit 1) as n on true
      where u.write and u.shared
    ), first as (
      insert into holdfast.turns (lane_id, served_at, cursor, safe, seen, seen_xid, seen_at, looked_at)
      select s.id, p_now, s.sure, s.safe, s.head, s.xid, p_now, p_now from served s where s.place is null
    ), free as materialized (
      select t.ctid as place, s.id from served s join holdfast.turns t on t.ctid = s.place for update of t skip locked
    )
    update holdfast.turns t set version = t.version + 1, served_at = p_now, cursor = s.sure, safe = s.safe,
      seen = case when s.renewed then s.head else t.seen end, seen_xid = case when s.renewed then s.xid else t.seen_xid end,
      seen_at = case when s.renewed then p_now else t.seen_at end, looked_at = case when s.looked then p_now else t.looked_at end
    from free f join served s on s.id = f.id
    where t.ctid = f.place;
  end if;
  if exists (select from unnest(p_lanes) as u where u.write and not u.shared) then
    update holdfast.lanes l set served_at = p_now from (
      select i.id from holdfast.lanes i where i.id = any (array(select u.id from unnest(p_lanes) as u where u.write and not u.shared))
      order by i.id for update skip locked) as f
    where l.id = f.id;
  end if;
  return (
    select coalesce(jsonb_object_agg(u.id, jsonb_build_array(u.queue, u.type, u.lease_s, u.timeout_s, u.attempts)), '{}')
    from unnest(p_lanes) as u);
end $$;
