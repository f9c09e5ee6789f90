-- Claim: given a number of free slots, lease tasks.
--
-- The cursor. A task that becomes ready takes the next position, so the positions below the lowest ready one of a lane
-- are finished. A claim that starts at a cursor there never reads the dead index entries that an old snapshot keeps.
-- The caller keeps one hint per lane, [scan_start, seen_pos, xid, at, exact, rescanned, idle], and only sends it back.
-- Scans start at `scan_start`. `seen_pos` is the lowest ready position at the time `at`, when `xid` was the next
-- transaction id. Once every transaction older than that has ended, no task can appear below `seen_pos`: later
-- transactions take higher positions, because they have their id before their first position. Then `exact` and
-- `scan_start` move up to `seen_pos`, or to the lowest ready position of now if that is lower, as after a claim that
-- rolled back. A transaction that stays open would hold the cursor back for its whole life, so `scan_start` moves on
-- after a quarter of a second. To find what such a transaction commits later, a scan starts at the stored cursor, which
-- is exact, every five seconds, and five times a second while the lane is empty. `tick` checks the stored cursors.
--
-- Rotations. Lanes with a limit key or a fair owner are many, so their hints are stored in the database. The lanes of
-- one queue, type and priority form a rotation and take turns in it. The caller sends back only how far it got in
-- each: {rotations: {rotation: lane}}.
--
-- Limits. Lanes without limits are read without a lock. Lanes with limits give only what their counters allow. The
-- counters are locked all at once, without waiting, before any task is leased. claim_lanes.sql and
-- claim_rotations.sql find the lanes.

-- Claim tasks for a worker: rows of tasks, then one row whose header has the nonce, the lanes, the cursors and when
-- to ask again. Lanes come in the order of their rank. While there are rotations, the lanes of one rank take turns:
-- each gives a part of the slots, the next lane of its rotation first, and slots that are left go to lanes that have
-- more. Without rotations each lane gives all it has, the lane with the oldest task first.
create or replace function holdfast.claim_ready_tasks(
  p_worker_id bigint, p_slots integer, p_queues text[], p_types text[], p_cursors jsonb, p_now timestamptz,
  p_nonce bigint default null)
returns table (id uuid, job_id uuid, lane_id bigint, name text, attempt integer, suspect boolean, args jsonb,
  parents jsonb, header jsonb)
language plpgsql set search_path = '' as $$
declare
  -- The stored cursor is written only after this many positions, because every write costs a row version.
  v_min_cursor_advance constant bigint := 10000;
  -- Lanes of one rank that are leased from in one statement.
  v_max_lanes_at_once constant integer := 50;
  -- Lanes that the first scan of a rotation returns (each further scan of a claim twice as many, because they have few
  -- tasks), and that a scan reads. The first claim of a worker has no cursor and reads more.
  v_max_lanes_per_rotation constant integer := 20;
  v_max_visits constant integer := 400;
  v_max_visits_of_first_claim constant integer := 100000;
  -- How often one claim continues with the next lanes of its rotations.
  v_max_rounds constant integer := 10;
  v_ask_again_at_once_s constant numeric := 0.001;
  v_ask_again_soon_s constant numeric := 0.05;
  v_nonce bigint := coalesce(p_nonce, holdfast.new_nonce());
  v_left integer := p_slots;
  v_leased integer;
  v_lane holdfast.claim_lane;
  v_lanes holdfast.claim_lane[] := '{}';
  v_plain_ids bigint[] := '{}';
  v_plain_hints jsonb[] := '{}';
  v_scanned holdfast.claim_lane[] := '{}';
  v_rotating holdfast.claim_lane[] := '{}';
  v_rotations jsonb := p_cursors -> 'rotations';
  v_has_turns boolean;
  v_first integer;
  v_last integer;
  v_from integer;
  v_to integer;
  v_per_lane integer;
  v_reached integer;
  v_served holdfast.claim_lane[] := '{}';
  v_has_rotations boolean := p_slots > 0 and exists (select from holdfast.lanes l where l.limit_key is not null
    or l.fair_owner is not null);
begin
  -- While limits are counted again, nothing is claimed (limits/limits.sql).
  if p_slots > 0 and not pg_try_advisory_xact_lock_shared(1213154903, 0) then
    id := null; header := jsonb_build_object('nonce', v_nonce, 'got', 0, 'lanes', '{}'::jsonb, 'cursors', p_cursors,
      'next_s', v_ask_again_soon_s);
    return next;
    return;
  end if;
  -- Lanes without a rotation, with the hints that the caller sent.
  for v_lane in select * from holdfast.rank_plain_lanes(p_queues, p_types, p_cursors, p_now) loop
    v_plain_ids := v_plain_ids || v_lane.id;
    v_plain_hints := v_plain_hints || v_lane.hint;
    if v_lane.exact_cursor > v_lane.stored_cursor + v_min_cursor_advance then
      perform holdfast.store_lane_cursor(v_lane.id, v_lane.exact_cursor);
    end if;
    if v_lane.first_ready_pos is not null then
      v_lanes := v_lanes || v_lane;
    end if;
  end loop;
  for v_round in 1 .. v_max_rounds loop
    if v_has_rotations then
      v_scanned := array(select s from holdfast.rank_rotation_lanes(p_queues, p_types, v_rotations,
        least(v_left, v_max_lanes_per_rotation << (v_round - 1)),
        case when p_cursors -> 'rotations' is null then v_max_visits_of_first_claim else v_max_visits end, p_now) as s);
      v_rotating := array(select u from unnest(v_scanned) as u where u.id is not null order by u.rank desc, u.turn);
    end if;
    v_has_turns := v_rotating <> '{}';
    if v_has_turns then
      v_lanes := array(select u from unnest(v_lanes || v_rotating) as u
        order by u.rank desc, u.turn nulls first, u.first_ready_pos);
    end if;
    -- Serve the lanes rank by rank: v_first to v_last have the same rank and take turns.
    v_first := 1;
    v_reached := 0;
    while v_left > 0 and v_first <= cardinality(v_lanes) loop
      v_last := v_first;
      while v_has_turns and v_last < cardinality(v_lanes) and v_lanes[v_last + 1].rank = v_lanes[v_first].rank loop
        v_last := v_last + 1;
      end loop;
      -- The first pass divides the slots among the lanes; the second gives the rest to lanes that have more.
      for v_pass in 1 .. case when v_last > v_first then 2 else 1 end loop
        v_from := v_first;
        while v_left > 0 and v_from <= v_last loop
          v_per_lane := case v_pass when 1 then (v_left + least(v_last - v_from,
            v_max_lanes_at_once - 1)) / (least(v_last - v_from, v_max_lanes_at_once - 1) + 1) else v_left end;
          v_to := least(v_last, v_from + case v_pass when 1 then (v_left + v_per_lane - 1) / v_per_lane
            else v_max_lanes_at_once end - 1);
          return query select * from holdfast.lease_from_lanes(v_lanes[v_from : v_to], v_per_lane, v_left, v_nonce,
            p_worker_id, p_now);
          get diagnostics v_leased = row_count;
          v_left := v_left - v_leased;
          v_from := v_to + 1;
          v_reached := greatest(v_reached, v_to);
        end loop;
      end loop;
      v_first := v_last + 1;
    end loop;
    v_served := v_served || v_lanes[1 : v_reached];
    if v_has_turns or v_scanned <> '{}' then
      v_rotations := holdfast.advance_rotations(v_rotations, v_scanned,
        array(select u.id from unnest(v_lanes[1 : v_reached]) as u));
    end if;
    -- These lanes had few tasks: the slots that are left go to the next lanes. A rotation that gave fewer lanes than
    -- asked for ends the loop.
    exit when v_left = 0 or not v_has_turns or exists (select from unnest(v_scanned) as u where u.id is null);
    v_lanes := '{}';
  end loop;
  id := null; job_id := null; lane_id := null; name := null; attempt := null; suspect := null; args := null;
  parents := null;
  header := jsonb_build_object('nonce', v_nonce, 'got', p_slots - v_left,
    'lanes', case when v_left = p_slots then '{}' else holdfast.record_served_lanes(v_served, p_now) end,
    'cursors', coalesce((select jsonb_object_agg(h.lane_id, h.hint)
      from unnest(v_plain_ids, v_plain_hints) as h (lane_id, hint)), '{}')
      || case when v_rotations is null then '{}' else jsonb_build_object('rotations', v_rotations) end);
  if v_left > 0 and exists (select from unnest(v_scanned) as u where u.id is null and not u.rescanned) then
    header := header || jsonb_build_object('next_s', v_ask_again_at_once_s); -- not all lanes were read
  end if;
  return next;
end $$;

-- Record that lanes were served, and return what a worker needs to know about them. Fairness needs to know only
-- roughly who was served last, so a lane that another transaction is writing is skipped.
create or replace function holdfast.record_served_lanes(p_lanes holdfast.claim_lane[], p_now timestamptz) returns jsonb
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off
  set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  if exists (select from unnest(p_lanes) as u where u.should_write and u.in_rotation) then
    with served as materialized (
      select u.*, n.place from unnest(p_lanes) as u
      left join lateral (select t.ctid as place from holdfast.lane_cursors t where t.lane_id = u.id
        order by t.version desc limit 1) as n on true
      where u.should_write and u.in_rotation
    ), inserted as (
      insert into holdfast.lane_cursors (lane_id, served_at, cursor, scan_start, seen_pos, seen_xid, seen_at,
        rescanned_at)
      select s.id, p_now, s.exact_cursor, s.scan_start, s.first_ready_pos, s.next_xid, p_now, p_now from served s
        where s.place is null
    ), locked as materialized (
      select t.ctid as place, s.id from served s join holdfast.lane_cursors t on t.ctid = s.place
        for update of t skip locked
    )
    update holdfast.lane_cursors t set version = t.version + 1, served_at = p_now, cursor = s.exact_cursor,
      scan_start = s.scan_start,
      seen_pos = case when s.renew_seen_pos then s.first_ready_pos else t.seen_pos end, seen_xid = case
        when s.renew_seen_pos then s.next_xid
        else t.seen_xid end,
      seen_at = case when s.renew_seen_pos then p_now else t.seen_at end, rescanned_at = case when s.rescanned
        then p_now
        else t.rescanned_at end
    from locked f join served s on s.id = f.id
    where t.ctid = f.place;
  end if;
  if exists (select from unnest(p_lanes) as u where u.should_write and not u.in_rotation) then
    update holdfast.lanes l set served_at = p_now from (
      select i.id from holdfast.lanes i where i.id = any (array(select u.id from unnest(p_lanes) as u
        where u.should_write
        and not u.in_rotation))
      order by i.id for update skip locked) as f
    where l.id = f.id;
  end if;
  return (
    select coalesce(jsonb_object_agg(u.id, jsonb_build_array(u.queue, u.type, u.lease_s, u.timeout_s, u.max_attempts)),
      '{}')
    from unnest(p_lanes) as u);
end $$;
