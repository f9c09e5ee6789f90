-- Wake: sleeping workers are told of work, when the transaction that made it commits.
--
-- Who sleeps is looked up at the commit and not before: a worker that is awake now may be asleep by then, and would not be
-- told. PostgreSQL runs something at a commit only for the sake of a row, so a ring inserts one into `bells`, which has a
-- deferred trigger, and deletes it. What is left between that look and the end of the commit is covered by the worker, which
-- looks again a few times while it falls asleep (fetcher.py).

-- Rings for the queues of these lanes, once per transaction. The setting remembers the lanes that were rung for, and forgets them
-- with the transaction, or with the savepoint that is rolled back together with its bell.
create or replace function holdfast.wake(p_lanes bigint[]) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_rung text := coalesce(current_setting('holdfast.rung', true), '');
  v_row tid;
  v_rows tid[];
begin
  if p_lanes is null or (cardinality(p_lanes) = 1 and position(' ' || p_lanes[1] || ' ' in v_rung) > 0) then
    return;
  end if;
  if cardinality(p_lanes) = 1 then
    insert into holdfast.bells (queue, type) select l.queue, l.type from holdfast.lanes l where l.id = p_lanes[1] returning ctid into v_row;
    delete from holdfast.bells b where b.ctid = v_row;
    v_rung := set_config('holdfast.rung', right(v_rung, 1000) || ' ' || p_lanes[1] || ' ', true);
    return;
  end if;
  with rung as (
    insert into holdfast.bells (queue, type)
    select distinct l.queue, l.type from holdfast.lanes l where l.id = any (p_lanes) returning ctid
  )
  select array_agg(r.ctid) into v_rows from rung r;
  delete from holdfast.bells b where b.ctid = any (v_rows);
end $$;

-- One notification per queue, and none when nobody sleeps. A transaction that sees only its own past cannot know: there
-- every worker counts as sleeping.
create or replace function holdfast.ring() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if exists (
    select from holdfast.workers w
    where (w.sleeping or current_setting('transaction_isolation') <> 'read committed')
      and new.queue = any (w.queues) and (w.types is null or new.type = any (w.types))) and octet_length(new.queue) < 7900
  then
    perform pg_notify('holdfast', new.queue);
  end if;
  return null;
end $$;

-- Made once: making it again would lock the table.
do $$
begin
  if not exists (select from pg_catalog.pg_trigger where tgrelid = 'holdfast.bells'::regclass and tgname = 'ring') then
    create constraint trigger ring after insert on holdfast.bells
      deferrable initially deferred for each row execute function holdfast.ring();
  end if;
end $$;
