-- Lanes without a limit key or a fair owner: which of them a claim may serve, in which order and from which position.
-- claim.sql explains the protocol.

-- Lanes that a worker may serve now, the highest rank first, each with its hint moved on. The rank is the priority
-- plus the waiting time of the oldest task, divided by the queue's ageing_s. The caller keeps the hints of these
-- lanes.
create or replace function holdfast.rank_plain_lanes(p_queues text[], p_types text[], p_cursors jsonb,
  p_now timestamptz)
returns setof holdfast.claim_lane
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  v_default_ageing_s constant double precision := 60;
  -- How long an open transaction may hold the cursor back (claim.sql).
  v_max_cursor_hold_s constant double precision := 0.25;
  -- How often a scan starts at the stored cursor, to find what such a transaction committed.
  v_rescan_busy_lane_s constant double precision := 5;
  v_rescan_empty_lane_s constant double precision := 0.2;
begin
  if not exists (select from holdfast.lanes l where l.queue = any (p_queues) and l.limit_key is null
    and l.fair_owner is null) then
    return;
  end if;
  return query
  with now as materialized (
    select pg_snapshot_xmin(s)::text::bigint as oldest, pg_snapshot_xmax(s)::text::bigint as next,
      extract(epoch from p_now)::double precision as at, (select last_value from holdfast.positions) as top
    from pg_current_snapshot() as s
  ), candidates as materialized (
    select l.id, l.queue, l.type, l.limit_ids, l.limits_assigned, l.priority, l.cursor, l.served_at,
      least(k.lease_s, k.timeout_s + holdfast.lease_grace_s()) as lease_s,
      k.timeout_s, k.attempts, coalesce(q.ageing_s, v_default_ageing_s) as ageing_s, h.safe, h.seen, h.xid, h.at,
        coalesce(h.exact, l.cursor) as exact, h.looked,
      h.safe is null or h.looked < n.at - case h.idle when 0 then v_rescan_busy_lane_s
        else v_rescan_empty_lane_s end as look,
      h.xid <= n.oldest as over, h.xid <= n.oldest or h.at < n.at - v_max_cursor_hold_s as passed
    from now n cross join holdfast.lanes l
    join holdfast.task_policies k on k.id = l.policy_id
    left join holdfast.queues q on q.name = l.queue
    -- `offset 0` keeps the hint from being read once per field. A hint above all positions is from before a failover
    -- that lost positions: it is ignored.
    cross join lateral (select p_cursors -> (l.id::text) as c offset 0) as c
    left join lateral (
      select (c ->> 0)::bigint as safe, (c ->> 1)::bigint as seen, (c ->> 2)::bigint as xid,
        (c ->> 3)::double precision as at,
        (c ->> 4)::bigint as exact, (c ->> 5)::double precision as looked, (c ->> 6)::int as idle
      where (c ->> 1)::bigint <= n.top) as h on true
    where l.queue = any (p_queues) and (p_types is null or l.type = any (p_types)) and l.limit_key is null
      and l.fair_owner is null
      and q.paused_at is null
  ), scanned as (
    select m.*, t.pos as head, t.due_at,
      greatest(least(case when m.look then coalesce(m.safe, m.cursor) else m.safe end, t.pos),
        case when m.passed then least(t.pos, m.seen) end) as moved,
      greatest(least(m.exact, t.pos), case when m.over then least(t.pos, m.seen) end) as sure,
      m.passed or m.safe is null as renew
    from candidates m
    left join lateral (
      select t.pos, t.due_at from holdfast.tasks t
      where t.lane_id = m.id and t.status = 'ready' and t.pos >= case when m.look then m.cursor else m.safe end
      order by t.pos limit 1
    ) as t on true
  )
  select f.id, f.queue, f.type, false, f.limit_ids, f.limits_assigned, f.lease_s, f.timeout_s, f.attempts,
    f.priority + coalesce(floor(extract(epoch from p_now - f.due_at)::double precision / f.ageing_s), 0) as rank,
    f.served_at, f.cursor, f.head, f.moved, f.sure, f.renew, f.look, n.next,
    jsonb_build_array(f.moved,
      case when f.renew then coalesce(f.head, n.top) else f.seen end,
      case when f.renew then n.next else f.xid end,
      case when f.renew then n.at else f.at end,
      f.sure, case when f.look then n.at else f.looked end, case when f.head is null then 1 else 0 end),
    null::text, null::bigint, f.limit_ids is not null
  from scanned f cross join now n
  order by f.head is null, rank desc, f.served_at nulls first, f.head;
end $$;
