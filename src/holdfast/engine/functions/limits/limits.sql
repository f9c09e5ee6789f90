-- Limits: how many leases at once, and how many starts a second, for a queue, a type, or each key of it.
--
-- A rule is what people set; its counters are rows of `limits`, one for the rule or one per key. Lanes know the counters
-- that apply to them. Claims lock the counters of a lane, take no more tasks than they allow, and count them in the
-- same transaction; whatever ends a lease counts down. To change which rules apply, all work is held up for a moment
-- and counted anew from the leases that are there: counters are never trusted across a change.

create or replace function holdfast.put_limit(
  p_name text, p_queue text default null, p_type text default null, p_per_key boolean default false,
  p_max_running integer default null, p_rate double precision default null, p_burst double precision default null) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_old holdfast.limit_rules;
begin
  perform holdfast.check_name(p_name, 'name');
  if p_max_running is null and p_rate is null then
    perform holdfast.refuse('HF004', 'A limit needs max_running or rate.', 'max_running', 'Use remove_limit to take it away.');
  end if;
  if p_max_running < 0 or p_rate <= 0 or p_rate > 1e9 or p_burst < 1 or p_burst > 1e9 then
    perform holdfast.refuse('HF004', 'max_running must not be negative, rate must be above 0 and burst at least 1.', 'max_running');
  end if;
  select * into v_old from holdfast.limit_rules r where r.name = p_name;
  insert into holdfast.limit_rules (name, queue, type, per_key, max_running, rate, burst)
  values (p_name, p_queue, p_type, p_per_key, p_max_running, p_rate, p_burst)
  on conflict (name) do update set queue = excluded.queue, type = excluded.type, per_key = excluded.per_key,
    max_running = excluded.max_running, rate = excluded.rate, burst = excluded.burst;
  if (v_old.name, v_old.queue, v_old.type, v_old.per_key) is distinct from (p_name, p_queue, p_type, p_per_key) then
    perform holdfast.apply_limits();
  end if;
  perform holdfast.wake(array(select l.id from holdfast.lanes l where l.limit_ids is not null));
end $$;

create or replace function holdfast.remove_limit(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.limit_rules r where r.name = p_name;
  if not found then
    return false;
  end if;
  perform holdfast.apply_limits();
  return true;
end $$;

-- Which counters apply to which lane, and how many leases each has now. The lock waits for every claim under way, and a
-- claim that comes later reads the lanes only after it has the tasks: nothing is taken uncounted.
create or replace function holdfast.apply_limits() returns void
language plpgsql set search_path = '' set lock_timeout = '10s' as $$
begin
  lock table holdfast.tasks in access exclusive mode;
  update holdfast.lanes l set limit_ids = n.ids, limits_known = true
  from (select i.id, holdfast.limits_for(i.queue, i.type, i.limit_key) as ids from holdfast.lanes i) as n
  where n.id = l.id;
  update holdfast.limits c set running = coalesce((
    select count(*) from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
    where t.status = 'running' and c.id = any (l.limit_ids)), 0);
end $$;

-- Every counter next to the leases it should count; they differ only if the engine is wrong.
create or replace function holdfast.check_limits() returns table (rule text, key text, running integer, leases bigint)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select c.rule, c.key, c.running, (
    select count(*) from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
    where t.status = 'running' and c.id = any (l.limit_ids))
  from holdfast.limits c order by c.id;
end $$;

-- Nothing of a queue is claimed until it is resumed; what runs goes on.
create or replace function holdfast.pause_queue(p_queue text, p_why text default null, p_by text default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.queues (name, paused_at, paused_by, paused_why)
  values (holdfast.check_name(p_queue, 'queue'), holdfast.now(), coalesce(p_by, session_user), p_why)
  on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at), paused_by = excluded.paused_by,
    paused_why = excluded.paused_why;
end $$;

create or replace function holdfast.resume_queue(p_queue text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.queues q set paused_at = null, paused_by = null, paused_why = null where q.name = p_queue and q.paused_at is not null;
  if not found then
    return false;
  end if;
  perform holdfast.wake(array(select l.id from holdfast.lanes l where l.queue = p_queue));
  return true;
end $$;

-- How long a queue keeps what has ended, and how fast waiting raises priority; null leaves a setting as it is.
create or replace function holdfast.put_queue(
  p_queue text, p_keep_s bigint default null, p_keep_failed_s bigint default null, p_ageing_s double precision default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  if p_keep_s < 0 or p_keep_failed_s < 0 or p_ageing_s <= 0 then
    perform holdfast.refuse('HF004', 'keep_s and keep_failed_s must not be negative, ageing_s must be above 0.', 'keep_s');
  end if;
  insert into holdfast.queues (name, keep_s, keep_failed_s, ageing_s)
  values (holdfast.check_name(p_queue, 'queue'), p_keep_s, p_keep_failed_s, coalesce(p_ageing_s, 60))
  on conflict (name) do update set keep_s = coalesce(p_keep_s, queues.keep_s),
    keep_failed_s = coalesce(p_keep_failed_s, queues.keep_failed_s), ageing_s = coalesce(p_ageing_s, queues.ageing_s);
end $$;

call holdfast.allow('holdfast_worker', 'put_limit', 'remove_limit', 'check_limits', 'pause_queue', 'resume_queue', 'put_queue');
call holdfast.allow('service_role', 'put_limit', 'remove_limit', 'check_limits', 'pause_queue', 'resume_queue', 'put_queue');
