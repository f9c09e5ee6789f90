-- Remove lanes that stay empty, and task policies that nothing uses.
--
-- A lane with a limit key or an owner would otherwise stay forever for every key that a user invents, and a lane with
-- options that are computed for each call (`timeout`) for every value of them. A lane of the first sort that has no
-- task and was not served for an hour is closed, and so are empty lanes of a task that has many of the second sort.
-- Submits no longer find a closed lane and create a new one, while claims still read it. It is deleted if it is still
-- empty ten minutes later and every transaction that had an id when it was closed has ended. A submit takes its
-- transaction id before it looks for a lane (jobs/submit.sql), so no transaction can still be adding a task.
-- Transactions that use one snapshot for all statements may see the lane for longer; they lock the lane they choose
-- (find_or_create_lane).

-- Return when a lane was last served, or created.
create or replace function holdfast.get_lane_last_served_at(p_lane holdfast.lanes) returns timestamptz
language plpgsql stable set search_path = '' as $$
begin
  return coalesce((select t.served_at from holdfast.lane_cursors t where t.lane_id = p_lane.id order by t.version desc
    limit 1),
    p_lane.served_at, p_lane.created_at, '-infinity');
end $$;

-- Return the open lanes without a key or an owner of which their queue and task type have too many: all but the newest
-- twenty, which are kept even when they are empty.
create or replace function holdfast.list_surplus_lanes(p_now timestamptz) returns setof bigint
language sql stable set search_path = '' as $$
  select o.id from (
    select l.id, l.created_at, row_number() over (partition by l.queue, l.type, l.returned order by l.id desc) as number
    from holdfast.lanes l where l.limit_key is null and l.fair_owner is null and l.closed_at is null
  ) as o where o.number > 20 and coalesce(o.created_at, '-infinity') < p_now - interval '1 hour'
$$;

-- Close and delete lanes that stay empty, as described above. Returns the number of deleted lanes, limit counters and
-- task policies.
create or replace function holdfast.remove_idle_lanes(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' set jit = off as $$
declare
  v_last_cleanup_s bigint := (select last_value from holdfast.last_lane_cleanup_s);
  v_first_of_day boolean := floor(v_last_cleanup_s / 86400.0) < floor(extract(epoch from p_now) / 86400);
  v_surplus bigint[];
  v_used bigint[];
  v_count integer;
begin
  -- No index has all tasks by lane, so this reads the whole table of tasks: at most once in ten minutes.
  if v_last_cleanup_s > extract(epoch from p_now - interval '10 minutes') then
    return 0;
  end if;
  v_surplus := array(select holdfast.list_surplus_lanes(p_now));
  v_first_of_day := v_first_of_day and exists (
    select from holdfast.task_policies k group by k.queue, k.type having count(*) > 100);
  if v_surplus = '{}' and not v_first_of_day and not exists (
    select from holdfast.lanes l where l.closed_at is not null or ((l.limit_key is not null or l.fair_owner is not null)
      and holdfast.get_lane_last_served_at(l) < p_now - interval '1 hour')) then
    return 0;
  end if;
  perform setval('holdfast.last_lane_cleanup_s', extract(epoch from p_now)::bigint);
  v_used := array(select distinct t.lane_id from holdfast.tasks t);
  update holdfast.lanes l set closed_at = null, closed_xid = null where l.closed_at is not null and l.id = any (v_used);
  delete from holdfast.lanes l using (
    select o.id from holdfast.lanes o
    where o.closed_at < p_now - interval '10 minutes'
      and o.closed_xid <= pg_snapshot_xmin(pg_current_snapshot())::text::bigint
      and o.id <> all (v_used)
    order by o.id limit p_limit for update skip locked
  ) as deletable
  where l.id = deletable.id and not exists (select from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready');
  get diagnostics v_count = row_count;
  delete from holdfast.lane_cursors t where not exists (select from holdfast.lanes l where l.id = t.lane_id);
  update holdfast.lanes l set closed_at = p_now, closed_xid = pg_snapshot_xmax(pg_current_snapshot())::text::bigint
  where l.id in (
    select o.id from holdfast.lanes o
    where o.closed_at is null and o.id <> all (v_used) and (o.id = any (v_surplus)
      or ((o.limit_key is not null or o.fair_owner is not null)
        and holdfast.get_lane_last_served_at(o) < p_now - interval '1 hour'))
    order by o.id limit p_limit for update skip locked);
  if v_first_of_day then
    v_count := v_count + holdfast.remove_unused_task_policies(p_limit);
  end if;
  return v_count + holdfast.remove_idle_limit_counters(p_now, p_limit);
end $$;

-- Delete task policies that no lane and no ended task has, where a task type has more than a hundred. Returns their
-- number. Every submit compares its options with all policies of its queue and type. Once a day, because it reads the
-- whole history, which has no index by policy.
create or replace function holdfast.remove_unused_task_policies(p_limit integer) returns integer
language plpgsql set search_path = '' set jit = off as $$
declare
  v_unused bigint[] := array(
    select k.id from holdfast.task_policies k
    join (select p.queue, p.type from holdfast.task_policies p group by 1, 2 having count(*) > 100) as many
      on many.queue = k.queue and many.type = k.type
    where not exists (select from holdfast.lanes l where l.policy_id = k.id)
    order by k.id limit p_limit for update of k skip locked);
  v_count integer;
begin
  if v_unused = '{}' then
    return 0;
  end if;
  delete from holdfast.task_policies k where k.id = any (v_unused)
    and k.id <> all (array(select distinct h.policy_id from holdfast.history h where h.policy_id = any (v_unused)))
    and not exists (select from holdfast.lanes l where l.policy_id = k.id);
  get diagnostics v_count = row_count;
  return v_count;
end $$;
