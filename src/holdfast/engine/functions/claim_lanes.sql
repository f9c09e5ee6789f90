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
      f.sure, case when f.look then n.at else f.looked end, case when f.head is null then 1 else 0 end)
  from found f cross join now n
  order by f.head is null, rank desc, f.served_at nulls first, f.head;
end $$;

-- Those with a key or a share: the first p_most that have work and are not at a limit, the ones served longest ago first. Their
-- wait counts from when they were last served, so that a long backlog earns nothing. Their hints are in their rows, which are
-- written anyway. Lanes are looked into one by one until enough are found.
create or replace function holdfast.shared_lanes(p_queues text[], p_types text[], p_most integer, p_now timestamptz)
returns setof holdfast.open_lane
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
#variable_conflict use_column
declare
  v_oldest bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
  v_next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_top bigint := (select last_value from holdfast.positions);
begin
  p_queues := array(select n from unnest(p_queues) as n
    where not exists (select from holdfast.queues q where q.name = n and q.paused_at is not null));
  return query
  with first as materialized (
    select l.*, t.pos as head, t.due_at, t.look
    from (
      select l.* from holdfast.lanes l
      where l.queue = any (p_queues) and (p_types is null or l.type = any (p_types)) and (l.limit_key is not null or l.share is not null)
      order by l.priority + floor(extract(epoch from p_now - coalesce(l.served_at, l.made_at, p_now)) / 60) desc, l.served_at nulls first
    ) as l
    cross join lateral (
      select t.pos, t.due_at, h.look
      from (select coalesce(l.looked_at < p_now - interval '1 second' or l.seen > v_top, true) as look offset 0) as h
      cross join lateral (
        select t.pos, t.due_at from holdfast.tasks t
        where t.lane_id = l.id and t.status = 'ready' and t.pos >= case when h.look then l.cursor else l.safe end
        order by t.pos limit 1) as t
      where not exists (
        select from holdfast.limits i join holdfast.limit_rules r on r.name = i.rule
        where i.id = any (l.limit_ids) and (i.running >= r.max_running or i.asleep_until > p_now
          or holdfast.tokens_now(i.tokens, i.refilled_at, r.rate, r.burst, p_now) < 1))
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
    f.priority + floor(extract(epoch from p_now - greatest(f.due_at, f.served_at))::double precision / coalesce(q.ageing_s, 60)) as rank,
    f.served_at, f.cursor, f.head,
    greatest(least(case when f.look then f.cursor else f.safe end, f.head), case when f.fresh then least(f.safe, f.head) end,
      case when f.fresh and f.passed then least(f.head, f.seen) end),
    greatest(least(f.cursor, f.head), case when f.fresh and f.over then least(f.head, f.seen) end),
    not f.fresh or f.passed, f.look, v_next, null::jsonb
  from judged f
  join holdfast.kinds k on k.id = f.kind_id
  left join holdfast.queues q on q.name = f.queue
  order by rank desc, f.served_at nulls first, f.head;
end $$;

create or replace function holdfast.store_cursor(p_lane bigint, p_safe bigint) returns void
language plpgsql volatile set search_path = '' as $$
begin
  with free as materialized (
    select l.id from holdfast.lanes l where l.id = p_lane and l.cursor < p_safe for update skip locked)
  update holdfast.lanes l set cursor = p_safe from free where l.id = free.id;
end $$;
