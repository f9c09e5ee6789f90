-- Workers as operators see them: what they report, which command they have, and when they stopped.
--
-- A worker reads its command with every claim and with every heartbeat of its own; set_worker_command wakes it up.
-- With `drain` it claims no more tasks, finishes what runs and exits. With `stop` it does the same within its grace
-- period and then releases the rest.

-- Return the id of the worker with this name, and record that it was seen. A name is only a label: nothing is decided
-- by this table except which workers to wake.
create or replace function holdfast.find_or_create_worker(
  p_name text, p_queues text[], p_types text[], p_sleeping boolean, p_now timestamptz) returns bigint
language plpgsql set search_path = '' as $$
declare
  v_worker holdfast.workers;
begin
  select * into v_worker from holdfast.workers where name = p_name;
  if not found then
    insert into holdfast.workers (name, queues, types, sleeping, started_at, seen_at)
    values (holdfast.check_name(p_name, 'worker'), coalesce(p_queues, '{}'), p_types, coalesce(p_sleeping, false),
      p_now, p_now)
    on conflict (name) do update set seen_at = excluded.seen_at
    returning * into v_worker;
  elsif v_worker.seen_at < p_now - interval '10 seconds' or v_worker.sleeping <> coalesce(p_sleeping, v_worker.sleeping)
    or v_worker.queues is distinct from coalesce(p_queues, v_worker.queues)
    or (p_queues is not null and (v_worker.types is distinct from p_types or v_worker.stopped_at is not null)) then
    update holdfast.workers set seen_at = p_now, sleeping = coalesce(p_sleeping, sleeping),
      stopped_at = case when p_queues is null then stopped_at end, lost = lost and p_queues is null,
      queues = coalesce(p_queues, queues), types = case when p_queues is null then types else p_types end
    where id = (select w.id from holdfast.workers w where w.id = v_worker.id for update skip locked);
  end if;
  return v_worker.id;
end $$;

-- List workers seen within p_within_s. A worker is unresponsive after a minute without a heartbeat and lost after
-- two, when others take over its leases.
create or replace function holdfast.list_workers(p_within_s double precision default 3600) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  with running as (
    select t.worker_id, count(*) as n from (select t.worker_id from holdfast.tasks t where t.status = 'running'
      limit 100000) as t
    group by t.worker_id
  )
  select to_jsonb(w) || jsonb_build_object('running', coalesce(r.n, 0),
    'state', case when w.lost then 'lost' when w.stopped_at is not null then 'stopped'
      when w.seen_at <= v_now - interval '2 minutes' then 'lost' when w.seen_at <= v_now - interval '1 minute'
        then 'unresponsive'
      when w.command is not null then 'draining' else 'live' end,
    'seen_s', extract(epoch from v_now - w.seen_at)::double precision)
  from holdfast.workers w left join running r on r.worker_id = w.id
  where w.seen_at > v_now - p_within_s * interval '1 second' or r.n > 0
  order by w.name limit 10000;
end $$;

-- List the tasks that a worker runs now, the longest-running first.
create or replace function holdfast.list_running_tasks_of_worker(p_worker text, p_limit integer default 100) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return query
  select jsonb_build_object('task', t.id, 'job', coalesce(t.job_id, t.id), 'name', coalesce(t.name, l.type), 'type',
    l.type,
    'queue', l.queue, 'attempt', t.attempt, 'started_at', t.started_at, 'lease_until', t.lease_until,
    'deadline', t.started_at + k.timeout_s * interval '1 second', 'percent', t.percent, 'phase', t.phase, 'message',
      t.message)
  from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id join holdfast.task_policies k on k.id = l.policy_id
  where t.status = 'running' and t.worker_id = (select w.id from holdfast.workers w where w.name = p_worker)
  order by t.started_at limit least(greatest(p_limit, 1), 1000);
end $$;

-- Save what a worker reports about itself (host, process id, slots, running tasks, event loop lag, memory) and return
-- its command.
create or replace function holdfast.heartbeat_worker(p_worker text, p_report jsonb default null) returns text
language plpgsql security definer set search_path = '' as $$
declare
  v_id bigint := holdfast.find_or_create_worker(p_worker, null, null, null, holdfast.now());
  v_command text;
begin
  if pg_column_size(p_report) > 16384 then
    perform holdfast.raise_error('HF004', 'The report of a worker is longer than 16 KiB.', 'report');
  end if;
  if jsonb_typeof(p_report) <> 'object' then
    perform holdfast.raise_error('HF004', 'The report of a worker must be a JSON object.', 'report');
  end if;
  update holdfast.workers w set report = coalesce(p_report, w.report), seen_at = holdfast.now() where w.id = v_id
    returning w.command into v_command;
  return v_command;
end $$;

-- Record that a worker has finished or released all its tasks and exited.
create or replace function holdfast.mark_worker_stopped(p_worker text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.workers w set sleeping = false, stopped_at = holdfast.now(), report = w.report - 'channel'
  where w.name = p_worker;
end $$;

-- Record that a worker process died, and return the time. The process that renews its leases calls this.
create or replace function holdfast.mark_worker_lost(p_worker text) returns timestamptz
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  update holdfast.workers w set sleeping = false, woken_at = null, stopped_at = v_now, lost = true,
    report = w.report - 'channel'
  where w.name = p_worker and w.stopped_at is null;
  if found then
    perform holdfast.wake_all_workers();  -- it may have been notified of work that it never claimed
  end if;
  return v_now;
end $$;

-- Release the tasks that a dead worker still holds: those of claims that were running when it died. Claims that began
-- after p_died_at are those of a worker that has taken over the name. Returns the number of released claims.
create or replace function holdfast.release_tasks_of_lost_worker(p_worker text, p_died_at timestamptz) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_nonces bigint[] := array(
    select distinct t.nonce from holdfast.workers w join holdfast.tasks t on t.worker_id = w.id
    where w.name = p_worker and t.status = 'running' and t.started_at <= p_died_at);
begin
  return cardinality(holdfast.release_unreceived_tasks(p_worker, v_nonces));
end $$;

-- Tell a worker to drain or to stop; null withdraws the command. Returns whether the worker is alive.
create or replace function holdfast.set_worker_command(p_worker text, p_command text default 'stop') returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_seen timestamptz;
  v_left timestamptz;
begin
  if p_command is not null and p_command not in ('drain', 'stop') then
    perform holdfast.raise_error('HF004', format('Invalid command %s.', quote_literal(left(p_command, 100))),
      'command',
      'Use drain or stop.');
  end if;
  update holdfast.workers w set command = p_command where w.name = p_worker returning w.seen_at, w.stopped_at
    into v_seen, v_left;
  if not found then
    perform holdfast.raise_error('HF002', format('Worker %s does not exist.', quote_literal(left(p_worker, 200))),
      'worker');
  end if;
  perform pg_notify('holdfast', 'command');
  return v_left is null and v_seen > holdfast.now() - interval '2 minutes';
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_workers', 'list_running_tasks_of_worker', 'heartbeat_worker',
  'mark_worker_stopped', 'mark_worker_lost', 'release_tasks_of_lost_worker');
call holdfast.grant_execute('service_role', 'list_workers', 'list_running_tasks_of_worker', 'heartbeat_worker',
  'mark_worker_stopped', 'mark_worker_lost', 'release_tasks_of_lost_worker', 'set_worker_command');
