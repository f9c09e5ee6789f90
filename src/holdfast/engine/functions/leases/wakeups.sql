-- Wake sleeping workers when the transaction that created work commits.
--
-- Which workers sleep is read at the commit and not before: a worker that is awake now may be asleep by then and
-- would miss the notification. PostgreSQL runs code at a commit only in a deferred trigger of a row. So a wakeup
-- inserts a row into `wakeups`, which has a deferred trigger, and deletes it. The worker covers the time between the
-- trigger and the end of the commit: it asks again a few times while it goes to sleep (worker/fetcher.py).
--
-- NOTIFY takes one lock of the whole server until the commit, so transactions that notify commit one after another.
-- Therefore the workers of a queue are notified at most once in 50 ms. Those that were notified go on asking for
-- longer than that and find the tasks of transactions that did not notify. A worker that has no free slot left does not
-- ask any more; it notifies the next ones itself. See docs/decisions/0023-wakeups.md.

-- Return for how long transactions rely on workers that were notified before.
create or replace function holdfast.get_wakeup_interval() returns interval
language sql immutable set search_path = '' as $$ select interval '50 milliseconds' $$;

-- Return whether a worker with these queues sleeps and hears notifications. One that was not seen for longer than it
-- sleeps has died with its machine. p_type null: any type. Not pinned to a search_path, so that it is inlined.
create or replace function holdfast.is_sleeping_worker(p_worker holdfast.workers, p_queues text[], p_type text)
returns boolean
language sql stable as $$
  select p_worker.sleeping and p_worker.queues && p_queues
    and (p_worker.types is null or p_type is null or p_type = any (p_worker.types))
    and p_worker.seen_at > holdfast.now() - interval '75 seconds'
    and (p_worker.report ->> 'listening') is distinct from 'false'
$$;

-- Count the workers that sleep and hear notifications. last_woken_at is the last time when one of the workers was
-- notified that still asks for tasks, or null. The condition of is_sleeping_worker is written out, because every submit
-- calls this and would plan the inlined function again.
create or replace function holdfast.count_sleeping_workers(
  p_queues text[], p_type text, out sleeping bigint, out last_woken_at timestamptz)
language sql stable set search_path = '' as $$
  select count(*) filter (where w.sleeping and w.seen_at > holdfast.now() - interval '75 seconds'
      and (w.report ->> 'listening') is distinct from 'false'),
    max(w.woken_at) filter (where w.woken_at <= clock_timestamp())
  from holdfast.workers w
  where w.queues && p_queues and (w.types is null or p_type is null or p_type = any (w.types))
$$;

-- Let others wait for the end of this transaction, which notifies (p_exclusive), or wait for such a transaction. For
-- 0.1 s at most: it may be waiting for this one, and PostgreSQL looks for deadlocks after a second.
create or replace function holdfast.lock_wakeup(p_lock bigint, p_exclusive boolean) returns void
language plpgsql set search_path = '' set lock_timeout = '100ms' as $$
begin
  if p_exclusive then
    perform pg_advisory_xact_lock(p_lock);
  else
    perform pg_advisory_xact_lock_shared(p_lock);
    raise transaction_rollback;  -- gives the lock back at once, with this block
  end if;
exception when lock_not_available or deadlock_detected or transaction_rollback then
  null;
end $$;

-- Notify about p_workers sleeping workers of these queues, if nobody has done so in the last 50 ms. Called when the
-- transaction commits.
--
-- A notification counts when its transaction has committed. So in the second half of the interval one transaction
-- renews it while the others go on. Only after the interval they wait for the one that notifies, and rely on it if it
-- has committed.
create or replace function holdfast.notify_sleeping_workers(p_queues text[], p_type text, p_workers integer)
returns void
language plpgsql set search_path = '' as $$
declare
  v_election bigint := hashtextextended('holdfast wakeup ' || p_queues[1], 0);  -- nobody waits for this lock
  v_lock bigint := hashtextextended('holdfast wakeup ' || p_queues[1], 1);
  v_before record;
  v_now record;
  v_woken_for interval;
begin
  select * into v_before from holdfast.count_sleeping_workers(p_queues, p_type);
  v_woken_for := clock_timestamp() - v_before.last_woken_at;
  if v_before.sleeping = 0 or v_woken_for < holdfast.get_wakeup_interval() / 2 then
    return;
  end if;
  for v_try in 1 .. 3 loop
    if pg_try_advisory_xact_lock(v_election) then
      perform holdfast.lock_wakeup(v_lock, true);
      perform holdfast.send_wakeup(p_queues, p_type, p_workers, v_before.sleeping);
      return;
    elsif v_woken_for < holdfast.get_wakeup_interval() then
      return;
    end if;
    perform holdfast.lock_wakeup(v_lock, false);
    select * into v_now from holdfast.count_sleeping_workers(p_queues, p_type);
    if v_now.sleeping = 0 or v_now.last_woken_at > coalesce(v_before.last_woken_at, '-infinity') then
      return;
    end if;
  end loop;
  perform holdfast.broadcast_wakeup();
end $$;

-- Return the channel on which only this worker listens, or null if its report names none, as with older workers.
create or replace function holdfast.get_worker_channel(p_report jsonb) returns text
language sql immutable set search_path = ''
as $$ select substring(p_report ->> 'channel' from '^holdfast_[0-9a-f]{12}$') $$;

-- Choose a sleeping worker, record that it is woken and notify it and some others. Few workers are notified on their own
-- channels, so that the rest sleep on. The last two of them are backups, in case the first one is dead or blocked: they
-- ask a moment later. Otherwise all listening workers hear the notification, and its share says how many of them ask.
create or replace function holdfast.send_wakeup(p_queues text[], p_type text, p_workers integer, p_sleeping bigint)
returns void
language plpgsql set search_path = '' as $$
declare
  v_max_channels constant integer := 20;
  v_backups constant integer := 2;  -- as in count_workers_to_wake
  v_worker text;
  v_text text;
  v_backup_text text;
  v_channels text[];
begin
  update holdfast.workers w set woken_at = clock_timestamp()
  where w.id = (select s.id from holdfast.workers s where holdfast.is_sleeping_worker(s, p_queues, p_type)
    order by s.seen_at desc limit 1 for no key update skip locked)
  returning w.name into v_worker;
  if p_workers <= v_max_channels then
    select array_agg(holdfast.get_worker_channel(s.report) order by s.name <> v_worker, random()) into v_channels
    from holdfast.workers s where holdfast.is_sleeping_worker(s, p_queues, p_type);
  end if;
  if array_position(v_channels, null) is not null then
    v_channels := null;
  end if;
  v_text := jsonb_build_object('queues', p_queues, 'worker', v_worker,
    'share', case when v_channels is null then least(1, p_workers::double precision / p_sleeping) else 1 end)::text;
  v_backup_text := jsonb_build_object('queues', p_queues, 'worker', v_worker, 'backup', true)::text;
  if v_worker is null or octet_length(v_text) > 7900 then
    perform holdfast.broadcast_wakeup();
  elsif v_channels is null then
    perform pg_notify('holdfast', v_text);
  else
    perform pg_notify(c.channel, case when c.n <= p_workers - v_backups then v_text else v_backup_text end)
    from unnest(v_channels[1 : p_workers]) with ordinality as c (channel, n);
  end if;
end $$;

-- Wake all workers of all queues, at most once in 50 ms. This is the exception: a transaction that notifies takes
-- longer than 0.1 s to commit, or the rows of all sleeping workers are locked. The time is in a sequence, so that it
-- counts before the transaction has committed.
create or replace function holdfast.broadcast_wakeup() returns void
language plpgsql set search_path = '' as $$
declare
  v_now bigint := extract(epoch from clock_timestamp()) * 1000000;
  v_last bigint := coalesce(pg_sequence_last_value('holdfast.last_broadcast_us'), 0);
begin
  if v_now not between v_last and v_last + extract(epoch from holdfast.get_wakeup_interval()) * 1000000 then
    perform setval('holdfast.last_broadcast_us', v_now);
    perform pg_notify('holdfast', '');
  end if;
end $$;

-- Return how many workers to wake for so many tasks: one for ten tasks, and two more in case one is dead or full.
create or replace function holdfast.count_workers_to_wake(p_tasks integer) returns integer
language sql immutable set search_path = '' as $$ select coalesce(p_tasks / 10 + 3, 1000000) $$;

-- Wake the workers of the queues of these lanes, once per transaction. A setting remembers the lanes that were done.
-- It is forgotten with the transaction, or with the savepoint that is rolled back together with its row. p_tasks is
-- the number of new tasks; null: unknown, so all workers are woken.
create or replace function holdfast.wake_workers(p_lanes bigint[], p_tasks integer default null) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_woken text := coalesce(current_setting('holdfast.woken_lanes', true), '');
  v_workers integer := holdfast.count_workers_to_wake(p_tasks);
  v_row tid;
  v_rows tid[];
begin
  if p_lanes is null or (cardinality(p_lanes) = 1 and position(' ' || p_lanes[1] || ' ' in v_woken) > 0) then
    return;
  end if;
  if cardinality(p_lanes) = 1 then
    insert into holdfast.wakeups (queue, type, workers)
      select l.queue, l.type, v_workers from holdfast.lanes l where l.id = p_lanes[1] returning ctid into v_row;
    delete from holdfast.wakeups b where b.ctid = v_row;
    v_woken := set_config('holdfast.woken_lanes', right(v_woken, 1000) || ' ' || p_lanes[1] || ' ', true);
    return;
  end if;
  with inserted as (
    insert into holdfast.wakeups (queue, type, workers)
    select distinct l.queue, l.type, v_workers from holdfast.lanes l where l.id = any (p_lanes) returning ctid
  )
  select array_agg(r.ctid) into v_rows from inserted r;
  delete from holdfast.wakeups b where b.ctid = any (v_rows);
end $$;

-- Notify the workers of one queue when the transaction commits. A transaction with an older snapshot cannot know who
-- sleeps: it notifies all workers.
create or replace function holdfast.publish_wakeup() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if current_setting('transaction_isolation') = 'read committed' then
    perform holdfast.notify_sleeping_workers(array[new.queue], new.type, new.workers);
  elsif exists (select from holdfast.workers w where new.queue = any (w.queues)
    and (w.types is null or new.type = any (w.types)))
  then
    perform pg_notify('holdfast', '');
  end if;
  return null;
end $$;

-- Wake more workers after a claim that filled all slots of its worker: there may be more tasks, and this worker does
-- not ask for them.
create or replace function holdfast.wake_next_workers(p_worker bigint, p_queues text[]) returns void
language plpgsql set search_path = '' as $$
begin
  update holdfast.workers w set woken_at = null
  where w.id = (select s.id from holdfast.workers s where s.id = p_worker and s.woken_at is not null
    for no key update skip locked);
  perform holdfast.notify_sleeping_workers(p_queues, null, holdfast.count_workers_to_wake(50));
end $$;

-- Wake every sleeping worker, so that it asks again when the next task is due.
create or replace function holdfast.wake_all_workers() returns void
language plpgsql set search_path = '' as $$
begin
  if exists (select from holdfast.workers w where w.sleeping) then
    perform pg_notify('holdfast', '');
  end if;
end $$;

-- Created only once: to create it again would lock the table.
do $$
begin
  if not exists (
    select from pg_catalog.pg_trigger where tgrelid = 'holdfast.wakeups'::regclass and tgname = 'publish_wakeup')
  then
    create constraint trigger publish_wakeup after insert on holdfast.wakeups
      deferrable initially deferred for each row execute function holdfast.publish_wakeup();
  end if;
end $$;
