-- The end of lanes, so that a key a user makes up costs nothing for ever.
--
-- A lane with a key or a share, without any task and not served for an hour, is closed: submits no longer find it and make a new one; claims still
-- look into it. It is deleted when it is still empty after ten more minutes and every transaction is over that had an id when
-- it was closed: a submit takes its id before it looks for a lane (submit.sql), so nobody can still be putting a task into it.
-- Transactions with one snapshot for all statements may see it for longer, and lock the lane they choose (lane_for).
-- Counters of keys go when nothing runs under them, they hold nothing back, and no lane refers to them.

create or replace function holdfast.tidy_lanes(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' set jit = off as $$
declare
  v_used bigint[];
  v_count integer;
begin
  -- No index has all tasks by lane, so this reads the hot table; not more often than every ten minutes.
  if (select last_value from holdfast.lanes_tidied) > extract(epoch from p_now - interval '10 minutes') or not exists (
    select from holdfast.lanes l where (l.limit_key is not null or l.share is not null)
      and (holdfast.last_served(l) < p_now - interval '1 hour' or l.closed_at is not null)) then
    return 0;
  end if;
  perform setval('holdfast.lanes_tidied', extract(epoch from p_now)::bigint);
  v_used := array(select distinct t.lane_id from holdfast.tasks t);
  update holdfast.lanes l set closed_at = null, closed_xid = null where l.closed_at is not null and l.id = any (v_used);
  delete from holdfast.lanes l using (
    select o.id from holdfast.lanes o
    where o.closed_at < p_now - interval '10 minutes' and o.closed_xid <= pg_snapshot_xmin(pg_current_snapshot())::text::bigint
      and o.id <> all (v_used)
    order by o.id limit p_limit for update skip locked
  ) as gone
  where l.id = gone.id and not exists (select from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready');
  get diagnostics v_count = row_count;
  delete from holdfast.turns t where not exists (select from holdfast.lanes l where l.id = t.lane_id);
  update holdfast.lanes l set closed_at = p_now, closed_xid = pg_snapshot_xmax(pg_current_snapshot())::text::bigint
  where l.id in (
    select o.id from holdfast.lanes o
    where (o.limit_key is not null or o.share is not null) and o.closed_at is null
      and holdfast.last_served(o) < p_now - interval '1 hour' and o.id <> all (v_used)
    order by o.id limit p_limit for update skip locked);
  return v_count + holdfast.tidy_limits(p_now, p_limit);
end $$;

create or replace function holdfast.last_served(p_lane holdfast.lanes) returns timestamptz
language plpgsql stable set search_path = '' as $$
begin
  return coalesce((select t.served_at from holdfast.turns t where t.lane_id = p_lane.id order by t.version desc limit 1),
    p_lane.served_at, p_lane.made_at, '-infinity');
end $$;

-- The counters are locked first, and only then is asked who refers to them: a lane that is given its counters locks them (limits_for).
create or replace function holdfast.tidy_limits(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' set jit = off as $$
declare
  v_free bigint[] := array(
    select i.id from holdfast.limits i join holdfast.limit_rules r on r.name = i.rule
    where i.key is not null and i.running = 0 and coalesce(i.asleep_until, '-infinity') < p_now
      and coalesce(i.refilled_at, '-infinity') < p_now - coalesce(r.burst, greatest(r.rate, 1)) / r.rate * interval '1 second'
        is distinct from false
    order by i.id limit p_limit for update of i skip locked);
  v_count integer;
begin
  delete from holdfast.limits i where i.id = any (v_free)
    and i.id not in (select u from holdfast.lanes l cross join lateral unnest(l.limit_ids) as u);
  get diagnostics v_count = row_count;
  delete from holdfast.resting_keys k where k.until < p_now;
  return v_count;
end $$;

-- Owners take turns in this queue from now on, or no longer; what waits already stays where it is.
create or replace function holdfast.fair_queue(p_queue text, p_owners boolean default true) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.queues (name, fair_owners) values (holdfast.check_name(p_queue, 'queue'), coalesce(p_owners, true))
  on conflict (name) do update set fair_owners = excluded.fair_owners;
end $$;

call holdfast.allow('holdfast_worker', 'fair_queue');
call holdfast.allow('service_role', 'fair_queue');
