-- Wake sleeping workers when the transaction that created work commits.
--
-- Which workers sleep is read at the commit and not before: a worker that is awake now may be asleep by then and
-- would miss the notification. PostgreSQL runs code at a commit only in a deferred trigger of a row. So a wakeup
-- inserts a row into `wakeups`, which has a deferred trigger, and deletes it. The worker covers the time between the
-- trigger and the end of the commit: it asks again a few times while it goes to sleep (worker/fetcher.py).

-- Wake the workers of the queues of these lanes, once per transaction. A setting remembers the lanes that were done.
-- It is forgotten with the transaction, or with the savepoint that is rolled back together with its row.
create or replace function holdfast.wake_workers(p_lanes bigint[]) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_woken text := coalesce(current_setting('holdfast.woken_lanes', true), '');
  v_row tid;
  v_rows tid[];
begin
  if p_lanes is null or (cardinality(p_lanes) = 1 and position(' ' || p_lanes[1] || ' ' in v_woken) > 0) then
    return;
  end if;
  if cardinality(p_lanes) = 1 then
    insert into holdfast.wakeups (queue, type) select l.queue, l.type from holdfast.lanes l where l.id = p_lanes[1]
      returning ctid into v_row;
    delete from holdfast.wakeups b where b.ctid = v_row;
    v_woken := set_config('holdfast.woken_lanes', right(v_woken, 1000) || ' ' || p_lanes[1] || ' ', true);
    return;
  end if;
  with inserted as (
    insert into holdfast.wakeups (queue, type)
    select distinct l.queue, l.type from holdfast.lanes l where l.id = any (p_lanes) returning ctid
  )
  select array_agg(r.ctid) into v_rows from inserted r;
  delete from holdfast.wakeups b where b.ctid = any (v_rows);
end $$;

-- Send one notification per queue, and none when no worker sleeps. A transaction with an older snapshot cannot know
-- who sleeps: there every worker counts as sleeping.
create or replace function holdfast.publish_wakeup() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if exists (
    select from holdfast.workers w
    where (w.sleeping or current_setting('transaction_isolation') <> 'read committed')
      and new.queue = any (w.queues) and (w.types is null or new.type = any (w.types)))
        and octet_length(new.queue) < 7900
  then
    perform pg_notify('holdfast', new.queue);
  end if;
  return null;
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
