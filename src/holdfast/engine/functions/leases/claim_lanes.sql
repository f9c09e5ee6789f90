-- Which lanes a claim may serve, in which order, from where on, and under which limits. The protocol is in claim.sql.

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
    -- Locked, so that it is not tidied away before the lane refers to it (lanes.sql).
    select id into v_id from holdfast.limits
    where rule = v_rule.name and coalesce(key, '') = case when v_rule.per_key then p_limit_key else '' end for key share;
    if not found then
      insert into holdfast.limits (rule, key) values (v_rule.name, case when v_rule.per_key then p_limit_key end)
      on conflict do nothing
      returning id into v_id;
      if v_id is null then
        select id into strict v_id from holdfast.limits
        where rule = v_rule.name and coalesce(key, '') = case when v_rule.per_key then p_limit_key else '' end for key share;
      end if;
    end if;
    v_ids := v_ids || v_id;
  end loop;
  return nullif(array(select i from unnest(v_ids) as i order by i), '{}');
end $$;

-- The counters of a lane, found out by its first claim: a submit must not make others wait for its transaction. A claim waits for
-- nobody either, as it may hold counters that others wait for: false when some of these are locked, or being made.
create or replace function holdfast.know_limits(p_lane bigint, out known boolean, out ids bigint[])
language plpgsql set search_path = '' as $$
declare
  v_lane holdfast.lanes;
begin
  select * into v_lane from holdfast.lanes l where l.id = p_lane for update skip locked;
  known := found and pg_try_advisory_xact_lock(1213154902, hashtext(coalesce(v_lane.limit_key, '')));
  if known then
    with there as materialized (
      select c.id, c.version from holdfast.limit_rules r join holdfast.limits c on c.rule = r.name
        and coalesce(c.key, '') = case when r.per_key then v_lane.limit_key else '' end
      where (r.queue is null or r.queue = v_lane.queue) and (r.type is null or r.type = v_lane.type)
    ), free as materialized (
      select c.id from there t join holdfast.limits c on c.id = t.id and c.version >= t.version for key share of c skip locked
    )
    select (select count(*) from there) = (select count(*) from free) into known;
  end if;
  if known then
    update holdfast.lanes l set limit_ids = holdfast.limits_for(l.queue, l.type, l.limit_key), limits_known = true
    where l.id = p_lane returning l.limit_ids into ids;
  end if;
end $$;

-- Lanes that a worker may serve now, the most urgent first, each with its hint moved on. The rank is the priority plus what
-- waiting is worth. Here those with neither key nor share, whose hints are the caller's.
create or replace function holdfast.plain_lanes(p_queues text[], p_types text[], p_cursors jsonb, p_now timestamptz)
returns setof holdfast.open_lane
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  if not exists (select from holdfast.lanes l where l.queue = any (p_queues) and l.limit_key is null and l.share is null) then
    return;
  end if;
  return query
  with now as materialized (
    select pg_snapshot_xmin(s)::text::bigint as oldest, pg_snapshot_xmax(s)::text::bigint as next,
      extract(epoch from p_now)::double precision as at, (select last_value from holdfast.positions) as top
    from pg_current_snapshot() as s
  ), mine as materialized (
    select l.id, l.queue, l.type, l.limit_ids, l.limits_known, l.priority, l.cursor, l.served_at, least(k.lease_s, k.timeout_s + 5) as lease_s,
      k.timeout_s, k.attempts, coalesce(q.ageing_s, 60) as ageing_s, h.safe, h.seen, h.xid, h.at, coalesce(h.exact, l.cursor) as exact, h.looked,
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
    where l.queue = any (p_queues) and (p_types is null or l.type = any (p_types)) and l.limit_key is null and l.share is null
      and q.paused_at is null
  ), found as (
    select m.*, t.pos as head, t.due_at,
      greatest(least(case when m.look then coalesce(m.safe, m.cursor) else m.safe end, t.pos),
        case when m.passed then least(t.pos, m.seen) end) as moved,
      greatest(least(m.exact, t.pos), case when m.over then least(t.pos, m.seen) end) as sure,
      m.passed or m.safe is null as renew
    from mine m
    left join lateral (
      select t.pos, t.due_at from holdfast.tasks t
      where t.lane_id = m.id and t.status = 'ready' and t.pos >= case when m.look then m.cursor else m.safe end
      order by t.pos limit 1
    ) as t on true
  )
  select f.id, f.queue, f.type, false, f.limit_ids, f.limits_known, f.lease_s, f.timeout_s, f.attempts,
    f.priority + coalesce(floor(extract(epoch from p_now - f.due_at)::double precision / f.ageing_s), 0) as rank,
    f.served_at, f.cursor, f.head, f.moved, f.sure, f.renew, f.look, n.next,
    jsonb_build_array(f.moved,
      case when f.renew then coalesce(f.head, n.top) else f.seen end,
      case when f.renew then n.next else f.xid end,
      case when f.renew then n.at else f.at end,
      f.sure, case when f.look then n.at else f.looked end, case when f.head is null then 1 else 0 end),
    null::text, null::bigint, f.limit_ids is not null
  from found f cross join now n
  order by f.head is null, rank desc, f.served_at nulls first, f.head;
end $$;

-- The rings of these queues: lanes with a key or a share, by queue, type and priority. Steps from one to the next in the index.
create or replace function holdfast.rings(p_queues text[], p_types text[]) returns table (queue text, type text, priority smallint)
language plpgsql stable set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  with recursive steps as (
    select f.* from (select distinct n from unnest(p_queues) as n) as q
    cross join lateral (
      select l.queue, l.type, l.priority from holdfast.lanes l
      where l.queue = q.n and (l.limit_key is not null or l.share is not null) order by l.type, l.priority limit 1) as f
    union all
    select n.* from steps s
    cross join lateral (
      select l.queue, l.type, l.priority from holdfast.lanes l
      where l.queue = s.queue and (l.type, l.priority) > (s.type, s.priority) and (l.limit_key is not null or l.share is not null)
      order by l.type, l.priority limit 1) as n
  )
  select s.queue, s.type, s.priority from steps s
  where (p_types is null or s.type = any (p_types))
    and not exists (select from holdfast.queues q where q.name = s.queue and q.paused_at is not null);
end $$;

-- Lanes with a key or a share, of each ring the next p_most that have work and are not at a limit. The ring is walked by id from
-- where the caller's last claim got to, which is how lanes take turns, and not further than p_visits lanes at a time, however
-- many there are. A caller without a past starts anywhere. One more row per ring, without an id, tells where a walk ended that
-- found less than p_most: `stored` is the last lane, `looked` whether it was the whole ring.
create or replace function holdfast.ring_lanes(
  p_queues text[], p_types text[], p_rings jsonb, p_most integer, p_visits integer, p_now timestamptz)
returns setof holdfast.open_lane
language plpgsql volatile set search_path = '' as $$
declare
  v_ring record;
  v_name text;
  v_from bigint;
  v_count bigint;
begin
  for v_ring in select * from holdfast.rings(p_queues, p_types) loop
    v_name := jsonb_build_array(v_ring.queue, v_ring.type, v_ring.priority)::text;
    v_from := coalesce((p_rings ->> v_name)::bigint, floor(random() * (
      select l.id from holdfast.lanes l where l.queue = v_ring.queue and l.type = v_ring.type and l.priority = v_ring.priority
        and (l.limit_key is not null or l.share is not null) order by l.id desc limit 1))::bigint);
    return query select * from holdfast.walk_ring(v_ring.queue, v_ring.type, v_ring.priority, v_name, v_from, p_most, p_visits, p_now);
    get diagnostics v_count = row_count;
    if v_count < p_most then
      return query select null::bigint, v_ring.queue, v_ring.type, true, null::bigint[], null::boolean, null::double precision,
        null::double precision, null::integer, null::double precision, null::timestamptz, max(w.id) filter (where w.turn = w.lanes),
        null::bigint, null::bigint, null::bigint, null::boolean, max(w.lanes) < p_visits, null::bigint, null::jsonb, v_name, null::bigint,
        null::boolean
      from (select r.id, r.turn, count(*) over () as lanes
        from holdfast.ring_from(v_ring.queue, v_ring.type, v_ring.priority, v_from, p_visits) as r) as w;
    end if;
  end loop;
end $$;

-- The next lanes of a ring, from the one after p_from round to it.
create or replace function holdfast.ring_from(p_queue text, p_type text, p_priority smallint, p_from bigint, p_visits integer)
returns table (id bigint, turn bigint)
language plpgsql stable set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  select r.id, row_number() over () from (
    (select l.id from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.priority = p_priority and l.id > p_from
      and (l.limit_key is not null or l.share is not null) order by l.id limit p_visits)
    union all
    (select l.id from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.priority = p_priority and l.id <= p_from
      and (l.limit_key is not null or l.share is not null) order by l.id limit p_visits)
  ) as r limit p_visits;
end $$;

-- One ring. Waiting counts from when a lane was last served, so that a long backlog earns nothing. The hints of these lanes are
-- in `turns`, the newest version first. They are written by every second service, and when they have become old.
create or replace function holdfast.walk_ring(
  p_queue text, p_type text, p_priority smallint, p_ring text, p_from bigint, p_most integer, p_visits integer, p_now timestamptz)
returns setof holdfast.open_lane
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
#variable_conflict use_column
declare
  v_oldest bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
  v_next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_top bigint := (select last_value from holdfast.positions);
  v_ageing double precision := coalesce((select q.ageing_s from holdfast.queues q where q.name = p_queue), 60);
begin
  return query
  with first as materialized (
    select l.id, l.kind_id, l.queue, l.type, l.priority, l.limit_ids, l.limits_known, l.turn, t.*
    from (
      select r.*, row_number() over () as turn from (
        (select l.* from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.priority = p_priority and l.id > p_from
          and (l.limit_key is not null or l.share is not null) order by l.id limit p_visits)
        union all
        (select l.* from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.priority = p_priority and l.id <= p_from
          and (l.limit_key is not null or l.share is not null) order by l.id limit p_visits)
      ) as r limit p_visits
    ) as l
    cross join lateral (
      select t.pos as head, t.due_at, h.look, h.served_at, h.cursor, h.safe, h.seen, h.seen_xid, h.seen_at
      from (
        select coalesce(o.cursor, l.cursor) as cursor, o.served_at, o.safe, o.seen, o.seen_xid, o.seen_at,
          coalesce(o.looked_at < p_now - interval '1 second' or o.seen > v_top, true) as look
        from (values (1)) as n
        left join lateral (select t.* from holdfast.turns t where t.lane_id = l.id order by t.version desc limit 1) as o on true
        offset 0
      ) as h
      cross join lateral (
        select t.pos, t.due_at from holdfast.tasks t
        where t.lane_id = l.id and t.status = 'ready' and t.pos >= case when h.look then h.cursor else h.safe end
        order by t.pos limit 1) as t
      where not exists (
        select from unnest(l.limit_ids) as u (id)
        cross join lateral (select i.* from holdfast.limits i where i.id = u.id order by i.version desc limit 1) as i
        join holdfast.limit_rules r on r.name = i.rule
        where i.running >= r.max_running or i.asleep_until > p_now
          or holdfast.tokens_now(i.tokens, i.refilled_at, r.rate, r.burst, p_now) < 1)
        and not exists (select from holdfast.resting_keys r where r.key = l.limit_key and r.until > p_now)
      offset 0
    ) as t
    limit p_most
  ), judged as (
    select f.*, f.seen is not null and f.seen <= v_top as fresh,
      f.seen_xid <= v_oldest as over, f.seen_xid <= v_oldest or f.seen_at < p_now - interval '0.25 seconds' as passed
    from first f
  )
  select f.id, f.queue, f.type, true, f.limit_ids, f.limits_known, least(k.lease_s, k.timeout_s + 5), k.timeout_s, k.attempts,
    f.priority + floor(extract(epoch from p_now - greatest(f.due_at, f.served_at))::double precision / v_ageing) as rank,
    f.served_at, f.cursor, f.head,
    greatest(least(case when f.look then f.cursor else f.safe end, f.head), case when f.fresh then least(f.safe, f.head) end,
      case when f.fresh and f.passed then least(f.head, f.seen) end),
    greatest(least(f.cursor, f.head), case when f.fresh and f.over then least(f.head, f.seen) end),
    not f.fresh or f.passed, f.look, v_next, null::jsonb, p_ring, f.turn,
    f.look or random() < 0.5 or coalesce(f.served_at < p_now - least(5, v_ageing / 4) * interval '1 second', true)
  from judged f
  join holdfast.kinds k on k.id = f.kind_id
  order by rank desc, f.turn;
end $$;

-- Where the next claim goes on in each ring: after the lanes that were served, up to the first that was not.
create or replace function holdfast.move_rings(p_rings jsonb, p_seen holdfast.open_lane[], p_served bigint[]) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return coalesce(p_rings, '{}') || coalesce((
    select jsonb_object_agg(r.ring, coalesce(r.waits - 1, r.ended, r.served)) from (
      select u.ring, (array_agg(u.id order by u.turn) filter (where u.id <> all (p_served)))[1] as waits,
        max(u.stored) filter (where u.id is null) as ended, (array_agg(u.id order by u.turn desc) filter (where u.id is not null))[1] as served
      from unnest(p_seen) as u group by u.ring
    ) as r where coalesce(r.waits, r.ended, r.served) is not null), '{}');
end $$;

create or replace function holdfast.store_cursor(p_lane bigint, p_safe bigint) returns void
language plpgsql volatile set search_path = '' as $$
begin
  with free as materialized (
    select l.id from holdfast.lanes l where l.id = p_lane and l.cursor < p_safe for update skip locked)
  update holdfast.lanes l set cursor = p_safe from free where l.id = free.id;
end $$;
