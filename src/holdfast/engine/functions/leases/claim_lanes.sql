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
      extract(epoch from p_now)::double precision as at, (select last_value from holdfast.task_positions) as top
    from pg_current_snapshot() as s
  ), candidates as materialized (
    select l.id, l.queue, l.type, l.limit_ids, l.limits_assigned, l.claim_priority, l.cursor, l.served_at,
      least(k.lease_s, k.timeout_s + holdfast.get_lease_grace_s()) as lease_s,
      k.timeout_s, k.max_attempts, coalesce(q.ageing_s, v_default_ageing_s) as ageing_s, h.scan_start, h.seen_pos,
        h.xid, h.at,
        coalesce(h.exact, l.cursor) as exact, h.rescanned,
      h.scan_start is null or h.rescanned < n.at - case h.idle when 0 then v_rescan_busy_lane_s
        else v_rescan_empty_lane_s end as rescan,
      h.xid <= n.oldest as over, h.xid <= n.oldest or h.at < n.at - v_max_cursor_hold_s as passed
    from now n cross join holdfast.lanes l
    join holdfast.task_policies k on k.id = l.policy_id
    left join holdfast.queues q on q.name = l.queue
    -- `offset 0` keeps the hint from being read once per field. A hint above all positions is from before a failover
    -- that lost positions: it is ignored.
    cross join lateral (select p_cursors -> (l.id::text) as c offset 0) as c
    left join lateral (
      select (c ->> 0)::bigint as scan_start, (c ->> 1)::bigint as seen_pos, (c ->> 2)::bigint as xid,
        (c ->> 3)::double precision as at,
        (c ->> 4)::bigint as exact, (c ->> 5)::double precision as rescanned, (c ->> 6)::int as idle
      where (c ->> 1)::bigint <= n.top) as h on true
    where l.queue = any (p_queues) and (p_types is null or l.type = any (p_types)) and l.limit_key is null
      and l.fair_owner is null
      and q.paused_at is null
  ), scanned as (
    select m.*, t.pos as first_ready_pos, t.due_at,
      greatest(least(case when m.rescan then coalesce(m.scan_start, m.cursor) else m.scan_start end, t.pos),
        case when m.passed then least(t.pos, m.seen_pos) end) as moved,
      greatest(least(m.exact, t.pos), case when m.over then least(t.pos, m.seen_pos) end) as exact_cursor,
      m.passed or m.scan_start is null as renew_seen_pos
    from candidates m
    left join lateral (
      select t.pos, t.due_at from holdfast.tasks t
      where t.lane_id = m.id and t.status = 'ready' and t.pos >= case when m.rescan then m.cursor else m.scan_start end
      order by t.pos limit 1
    ) as t on true
  )
  select f.id, f.queue, f.type, false, f.limit_ids, f.limits_assigned, f.lease_s, f.timeout_s, f.max_attempts,
    f.claim_priority + coalesce(floor(extract(epoch from p_now - f.due_at)::double precision / f.ageing_s), 0) as rank,
    f.served_at, f.cursor, f.first_ready_pos, f.moved, f.exact_cursor, f.renew_seen_pos, f.rescan, n.next,
    jsonb_build_array(f.moved,
      case when f.renew_seen_pos then coalesce(f.first_ready_pos, n.top) else f.seen_pos end,
      case when f.renew_seen_pos then n.next else f.xid end,
      case when f.renew_seen_pos then n.at else f.at end,
      f.exact_cursor, case when f.rescan then n.at else f.rescanned end, case when f.first_ready_pos is null then 1
        else 0 end),
    null::text, null::bigint, f.limit_ids is not null
  from scanned f cross join now n
  order by f.first_ready_pos is null, rank desc, f.served_at nulls first, f.first_ready_pos;
end $$;
