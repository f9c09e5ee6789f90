-- Limits: how many tasks may run at once, and how many may start per second, for a queue, a type, or each limit key.
--
-- A rule is what a person sets. Its counters are rows of `limit_counters`: one for the rule, or one per key. Each
-- lane stores the ids of the counters that apply to it. A claim locks the counters of a lane, leases no more tasks
-- than they allow, and adds the tasks in the same transaction; whatever ends a lease subtracts (counters.sql).
--
-- When the set of rules changes, the counters are computed again from the existing leases: counters are never trusted
-- across a change. Nothing may be leased or ended uncounted meanwhile, and no table is locked for it: a lock on a
-- table would wait for readers such as pg_dump, and everybody else would wait behind it. Instead, `lock_all_leases`
-- takes an advisory lock that every claim shares, and the rows of the running tasks. A claim that does not get its
-- share claims nothing and asks again soon. Whatever ends a lease waits for the row of its task, and reads the
-- counters of its lane only after that.

-- Create or change a limit.
create or replace function holdfast.put_limit(
  p_name text, p_queue text default null, p_type text default null, p_per_key boolean default false,
  p_max_running integer default null, p_rate double precision default null, p_burst double precision default null)
    returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_old holdfast.limit_rules;
  v_applies_elsewhere boolean;
begin
  perform holdfast.check_name(p_name, 'name'), holdfast.check_text(p_queue, 'queue', 200),
    holdfast.check_text(p_type, 'type', 200), holdfast.check_number(p_max_running, 'max_running', 0, 1000000),
    holdfast.check_number(p_rate, 'rate', 0.0001, 1000000), holdfast.check_number(p_burst, 'burst', 1, 1000000);
  if p_max_running is null and p_rate is null then
    perform holdfast.raise_error('HF004', 'A limit needs max_running or rate.', 'max_running',
      'Use delete_limit to delete the limit.');
  end if;
  select * into v_old from holdfast.limit_rules r where r.name = p_name;
  -- Deployments declare limits before the first task, so a name that does not exist yet is accepted with a notice.
  if p_queue is not null and p_queue is distinct from v_old.queue and not exists (
      select from holdfast.list_queue_names() as n where n = p_queue) then
    raise notice 'Queue "%" has no tasks and no worker.', p_queue
      using hint = 'holdfast.list_queue_names() lists the queues.';
  end if;
  if p_type is not null and p_type is distinct from v_old.type and not exists (
      select from holdfast.list_task_type_names() as n where n = p_type) then
    raise notice 'Task "%" was neither registered nor submitted.', p_type
      using hint = 'holdfast.list_task_type_names() lists the tasks.';
  end if;
  v_applies_elsewhere := (v_old.name, v_old.queue, v_old.type, v_old.per_key)
    is distinct from (p_name, p_queue, p_type, coalesce(p_per_key, false));
  if v_applies_elsewhere then
    perform holdfast.lock_all_leases();
  end if;
  insert into holdfast.limit_rules (name, queue, type, per_key, max_running, rate, burst)
  values (p_name, p_queue, p_type, coalesce(p_per_key, false), p_max_running, p_rate, p_burst)
  on conflict (name) do update set queue = excluded.queue, type = excluded.type, per_key = excluded.per_key,
    max_running = excluded.max_running, rate = excluded.rate, burst = excluded.burst;
  if v_applies_elsewhere then
    perform holdfast.recount_limits();
  end if;
  perform holdfast.wake_workers(array(select l.id from holdfast.lanes l where l.limit_ids is not null));
end $$;

-- Delete a limit. False if it does not exist.
create or replace function holdfast.delete_limit(p_name text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  if not exists (select from holdfast.limit_rules r where r.name = p_name) then
    return false;
  end if;
  perform holdfast.lock_all_leases();
  delete from holdfast.limit_rules r where r.name = p_name;
  if not found then
    return false;
  end if;
  perform holdfast.recount_limits();
  return true;
end $$;

-- List all limits with their current use: the sum over their keys, and the keys with the most running tasks.
create or replace function holdfast.list_limits() returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  select to_jsonb(r) || jsonb_build_object('running', coalesce(c.running, 0), 'keys', coalesce(c.keys, 0),
    'paused_until', c.paused_until, 'fullest', c.fullest)
  from holdfast.limit_rules r
  left join lateral (
    select sum(i.running)::bigint as running, count(*) as keys,
      max(i.paused_until) filter (where i.paused_until > v_now) as paused_until,
      (array_agg(i.key order by i.running desc) filter (where i.running > 0 and i.key is not null))[1:5] as fullest
    from holdfast.limit_counters i where i.rule = r.name
  ) as c on true
  order by r.name;
end $$;

-- List every limit counter beside the number of leases that it should show. The two differ only if the engine has a
-- bug.
create or replace function holdfast.list_limit_counters() returns table (rule text, key text, running integer,
  leases bigint)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select c.rule, c.key, c.running, (
    select count(*) from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
    where t.status = 'running' and c.id = any (l.limit_ids))
  from holdfast.limit_counters c order by c.id;
end $$;

-- Lock all leases until the end of the transaction: nothing is claimed, and no lease ends. Each try waits for a tenth
-- of a second and then lets the others go on, so that a transaction that holds a lease for long delays nobody else.
-- Raise 55P03 after five seconds. The rows are locked in the order of leases/leases.sql.
create or replace function holdfast.lock_all_leases() returns void
language plpgsql set search_path = '' set lock_timeout = '100ms' as $$
declare
  v_max_tries constant integer := 25;
  v_pause_s constant double precision := 0.1;
begin
  for v_try in 1 .. v_max_tries loop
    begin
      perform pg_advisory_xact_lock(1213154903, 0);
      perform from holdfast.tasks t where t.status = 'running' order by t.job_id is not null, t.id for update;
      return;
    exception when lock_not_available or deadlock_detected then
      perform pg_sleep(v_pause_s); -- the locks of this try are released
    end;
  end loop;
  perform holdfast.raise_error('55P03', 'A transaction has locked a running task for five seconds.', null,
    'Try again when it has ended.');
end $$;

-- Assign limit counters to all lanes and count the leases again. The caller has called lock_all_leases.
create or replace function holdfast.recount_limits() returns void
language plpgsql set search_path = '' set lock_timeout = '5s' as $$
begin
  update holdfast.lanes l set limit_ids = n.ids, limits_assigned = true
  from (select i.id, holdfast.find_or_create_limit_counters(i.queue, i.type, i.limit_key) as ids
    from holdfast.lanes i) as n
  where n.id = l.id;
  update holdfast.limit_counters c set running = coalesce((
    select count(*) from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
    where t.status = 'running' and c.id = any (l.limit_ids)), 0);
end $$;

-- Delete limit counters of keys that have no running task, no pause and no lane. The counters are locked first, and the
-- lanes are read after that: a lane that gets counters locks them (find_or_create_limit_counters).
create or replace function holdfast.remove_idle_limit_counters(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' set jit = off as $$
declare
  v_idle_ids bigint[] := array(
    select i.id from holdfast.limit_counters i join holdfast.limit_rules r on r.name = i.rule
    where i.key is not null and i.running = 0 and coalesce(i.paused_until, '-infinity') < p_now
      and coalesce(i.refilled_at, '-infinity') < p_now - coalesce(r.burst,
        greatest(r.rate, 1)) / r.rate * interval '1 second'
        is distinct from false
    order by i.id limit p_limit for update of i skip locked);
  v_count integer;
begin
  delete from holdfast.limit_counters i where i.id = any (v_idle_ids)
    and i.id not in (select u from holdfast.lanes l cross join lateral unnest(l.limit_ids) as u);
  get diagnostics v_count = row_count;
  delete from holdfast.paused_limit_keys k where k.until < p_now;
  return v_count;
end $$;

call holdfast.grant_execute('holdfast_worker', 'put_limit', 'delete_limit', 'list_limits', 'list_limit_counters');
call holdfast.grant_execute('service_role', 'put_limit', 'delete_limit', 'list_limits', 'list_limit_counters');
