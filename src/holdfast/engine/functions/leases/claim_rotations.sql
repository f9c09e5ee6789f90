-- Rotations: lanes with a limit key or a fair owner, which take turns. claim.sql explains the protocol.

-- List the rotations of these queues. A rotation is a queue, a type and a priority. The scan steps from one rotation to
-- the next in the index.
create or replace function holdfast.list_rotating_lane_groups(p_queues text[], p_types text[])
  returns table (queue text, type text, priority smallint)
language plpgsql stable set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  with recursive steps as (
    select f.* from (select distinct n from unnest(p_queues) as n) as q
    cross join lateral (
      select l.queue, l.type, l.claim_priority as priority from holdfast.lanes l
      where l.queue = q.n and (l.limit_key is not null or l.fair_owner is not null) order by l.type, l.claim_priority
        limit 1) as f
    union all
    select n.* from steps s
    cross join lateral (
      select l.queue, l.type, l.claim_priority as priority from holdfast.lanes l
      where l.queue = s.queue and (l.type, l.claim_priority) > (s.type, s.priority)
        and (l.limit_key is not null or l.fair_owner is not null)
      order by l.type, l.claim_priority limit 1) as n
  )
  select s.queue, s.type, s.priority from steps s
  where (p_types is null or s.type = any (p_types))
    and not exists (select from holdfast.queues q where q.name = s.queue and q.paused_at is not null);
end $$;

-- The next p_max_lanes lanes of each rotation that have work and are not at a limit. The rotation is read by lane id
-- from where the caller's last claim stopped, which makes the lanes take turns, and no further than p_max_visits lanes
-- at a time, however many there are. A caller without a cursor starts anywhere. If a rotation gave less than
-- p_max_lanes, one more row without an id says where the scan ended: `stored_cursor` is the last lane, `rescanned`
-- whether it was the whole rotation.
create or replace function holdfast.rank_rotation_lanes(
  p_queues text[], p_types text[], p_rotations jsonb, p_max_lanes integer, p_max_visits integer, p_now timestamptz)
returns setof holdfast.claim_lane
language plpgsql volatile set search_path = '' as $$
declare
  v_rotation record;
  v_name text;
  v_from bigint;
  v_count bigint;
begin
  for v_rotation in select * from holdfast.list_rotating_lane_groups(p_queues, p_types) loop
    v_name := jsonb_build_array(v_rotation.queue, v_rotation.type, v_rotation.priority)::text;
    v_from := coalesce((p_rotations ->> v_name)::bigint, floor(random() * (
      select l.id from holdfast.lanes l where l.queue = v_rotation.queue and l.type = v_rotation.type
        and l.claim_priority = v_rotation.priority
        and (l.limit_key is not null or l.fair_owner is not null) order by l.id desc limit 1))::bigint);
    return query select * from holdfast.rank_lanes_of_one_rotation(v_rotation.queue, v_rotation.type,
      v_rotation.priority,
      v_name, v_from, p_max_lanes, p_max_visits, p_now);
    get diagnostics v_count = row_count;
    if v_count < p_max_lanes then
      return query select null::bigint, v_rotation.queue, v_rotation.type, true, null::bigint[], null::boolean,
        null::double precision,
        null::double precision, null::integer, null::double precision, null::timestamptz,
          max(w.id) filter (where w.turn = w.lanes),
        null::bigint, null::bigint, null::bigint, null::boolean, max(w.lanes) < p_max_visits, null::bigint,
          null::jsonb, v_name, null::bigint,
        null::boolean
      from (select r.id, r.turn, count(*) over () as lanes
        from holdfast.list_rotation_lanes_from(v_rotation.queue, v_rotation.type, v_rotation.priority, v_from,
          p_max_visits) as r) as w;
    end if;
  end loop;
end $$;

-- List the next lanes of a rotation, starting after lane p_from and wrapping around to it.
create or replace function holdfast.list_rotation_lanes_from(p_queue text, p_type text, p_priority smallint,
  p_from bigint, p_max_visits integer)
returns table (id bigint, turn bigint)
language plpgsql stable set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  select r.id, row_number() over () from (
    (select l.id from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.claim_priority = p_priority
      and l.id > p_from
      and (l.limit_key is not null or l.fair_owner is not null) order by l.id limit p_max_visits)
    union all
    (select l.id from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.claim_priority = p_priority
      and l.id <= p_from
      and (l.limit_key is not null or l.fair_owner is not null) order by l.id limit p_max_visits)
  ) as r limit p_max_visits;
end $$;

-- List the lanes of one rotation with their rank. Waiting counts from when a lane was last served, so that a long
-- backlog gains nothing. The hints of these lanes are in `lane_cursors`, the newest version first. They are written by
-- every second claim, and when they have become old.
create or replace function holdfast.rank_lanes_of_one_rotation(
  p_queue text, p_type text, p_priority smallint, p_rotation text, p_from bigint, p_max_lanes integer,
    p_max_visits integer, p_now timestamptz)
returns setof holdfast.claim_lane
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_material = off as $$
#variable_conflict use_column
declare
  v_default_ageing_s constant double precision := 60;
  -- How long an open transaction may hold the cursor back, and how often a scan starts at the stored cursor
  -- (claim.sql).
  v_max_cursor_hold constant interval := '0.25 seconds';
  v_rescan_interval constant interval := '1 second';
  -- A hint is written by every second claim, and when it is older than this or than a quarter of the ageing time.
  v_write_probability constant double precision := 0.5;
  v_max_hint_age_s constant double precision := 5;
  v_oldest bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
  v_next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_top bigint := (select last_value from holdfast.task_positions);
  v_ageing_s double precision := coalesce((select q.ageing_s from holdfast.queues q where q.name = p_queue),
    v_default_ageing_s);
begin
  return query
  with candidates as materialized (
    select l.id, l.policy_id, l.queue, l.type, l.claim_priority, l.limit_ids, l.limits_assigned, l.turn, t.*
    from (
      select r.*, row_number() over () as turn from (
        (select l.* from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.claim_priority = p_priority
          and l.id > p_from
          and (l.limit_key is not null or l.fair_owner is not null) order by l.id limit p_max_visits)
        union all
        (select l.* from holdfast.lanes l where l.queue = p_queue and l.type = p_type and l.claim_priority = p_priority
          and l.id <= p_from
          and (l.limit_key is not null or l.fair_owner is not null) order by l.id limit p_max_visits)
      ) as r limit p_max_visits
    ) as l
    cross join lateral (
      select t.pos as first_ready_pos, t.due_at, h.rescan, h.served_at, h.cursor, h.scan_start, h.seen_pos, h.seen_xid,
        h.seen_at
      from (
        select coalesce(o.cursor, l.cursor) as cursor, o.served_at, o.scan_start, o.seen_pos, o.seen_xid, o.seen_at,
          coalesce(o.rescanned_at < p_now - v_rescan_interval or o.seen_pos > v_top, true) as rescan
        from (values (1)) as n
        left join lateral (select t.* from holdfast.lane_cursors t where t.lane_id = l.id order by t.version desc
          limit 1) as o on true
        offset 0
      ) as h
      cross join lateral (
        select t.pos, t.due_at from holdfast.tasks t
        where t.lane_id = l.id and t.status = 'ready' and t.pos >= case when h.rescan then h.cursor
          else h.scan_start end
        order by t.pos limit 1) as t
      where not exists (
        select from unnest(l.limit_ids) as u (id)
        cross join lateral (select i.* from holdfast.limit_counters i where i.id = u.id order by i.version desc
          limit 1) as i
        join holdfast.limit_rules r on r.name = i.rule
        where i.running >= r.max_running or i.paused_until > p_now
          or holdfast.compute_available_tokens(i.tokens, i.refilled_at, r.rate, r.burst, p_now) < 1)
        and not exists (select from holdfast.paused_limit_keys r where r.key = l.limit_key and r.until > p_now)
      offset 0
    ) as t
    limit p_max_lanes
  ), aged as (
    select f.*, f.seen_pos is not null and f.seen_pos <= v_top as fresh,
      f.seen_xid <= v_oldest as over, f.seen_xid <= v_oldest or f.seen_at < p_now - v_max_cursor_hold as passed
    from candidates f
  )
  select f.id, f.queue, f.type, true, f.limit_ids, f.limits_assigned,
    least(k.lease_s, k.timeout_s + holdfast.get_lease_grace_s()), k.timeout_s, k.max_attempts,
    f.claim_priority + floor(extract(epoch from p_now - greatest(f.due_at,
      f.served_at))::double precision / v_ageing_s) as rank,
    f.served_at, f.cursor, f.first_ready_pos,
    greatest(least(case when f.rescan then f.cursor else f.scan_start end, f.first_ready_pos), case when f.fresh
      then least(f.scan_start, f.first_ready_pos) end,
      case when f.fresh and f.passed then least(f.first_ready_pos, f.seen_pos) end),
    greatest(least(f.cursor, f.first_ready_pos), case when f.fresh and f.over then least(f.first_ready_pos,
      f.seen_pos) end),
    not f.fresh or f.passed, f.rescan, v_next, null::jsonb, p_rotation, f.turn,
    f.rescan or random() < v_write_probability or coalesce(f.served_at < p_now - least(v_max_hint_age_s,
      v_ageing_s / 4) * interval '1 second', true)
  from aged f
  join holdfast.task_policies k on k.id = f.policy_id
  order by rank desc, f.turn;
end $$;

-- Return where the next claim continues in each rotation: after the lanes that were served, up to the first that was
-- not.
create or replace function holdfast.advance_rotations(p_rotations jsonb, p_lanes holdfast.claim_lane[],
  p_served bigint[]) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return coalesce(p_rotations, '{}') || coalesce((
    select jsonb_object_agg(r.rotation, coalesce(r.first_unserved - 1, r.ended, r.served)) from (
      select u.rotation, (array_agg(u.id order by u.turn) filter (where u.id <> all (p_served)))[1] as first_unserved,
        max(u.stored_cursor) filter (where u.id is null) as ended, (array_agg(u.id
          order by u.turn desc) filter (where u.id is not null))[1] as served
      from unnest(p_lanes) as u group by u.rotation
    ) as r where coalesce(r.first_unserved, r.ended, r.served) is not null), '{}');
end $$;
