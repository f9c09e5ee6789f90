-- Wakeups: notify sleeping readers without one NOTIFY per message.
--
-- The protocol. A reader that got no message registers how long it will sleep (register_sleeping_reader) and reads once
-- more before it sleeps. It listens on channel holdfast_messages, whose payload is the queue. An insert compares that
-- time: while a reader sleeps, the first insert of every 50 ms notifies; otherwise none does. Both times are in
-- sequences, so nothing is locked and no row versions accumulate. A message can commit just after the last read of a
-- reader and within 50 ms of a notification, so a reader sleeps no longer than its poll interval. NOTIFY is a hint;
-- polling guarantees delivery.

-- Return the wakeup sequence of a queue table, or null. p_purpose is asleep or notified.
create or replace function holdfast.find_wakeup_sequence(p_table oid, p_purpose text) returns regclass
language plpgsql stable
as $$ begin return to_regclass('holdfast.' || p_purpose || '_' || p_table); end $$;

-- Notify the sleeping readers of a queue table, unless somebody has done so in the last 50 ms.
create or replace function holdfast.notify_readers_of_message_table(p_table oid, p_queue text) returns void
language plpgsql security definer set search_path = ''
as $$
declare
  v_now bigint := extract(epoch from clock_timestamp()) * 1000000;
  v_asleep regclass := holdfast.find_wakeup_sequence(p_table, 'asleep');
  v_notified regclass := holdfast.find_wakeup_sequence(p_table, 'notified');
begin
  if v_now < coalesce(pg_sequence_last_value(v_asleep), 0)
    and v_now >= coalesce(pg_sequence_last_value(v_notified), 0) + 50000 then
    perform setval(v_notified, v_now);
    perform pg_notify('holdfast_messages', p_queue);
  end if;
end
$$;

-- Notify sleeping readers of a queue after an insert (trigger).
create or replace function holdfast.notify_message_readers() returns trigger
language plpgsql security definer set search_path = ''
as $$
begin
  perform holdfast.notify_readers_of_message_table(tg_relid, tg_argv[0]);
  return null;
end
$$;

-- Wake sleeping readers of a queue: for whoever makes hidden messages visible by changing vt. Inserts do it themselves.
create or replace function holdfast.wake_message_readers(p_queue text) returns void
language plpgsql security definer set search_path = ''
as $$
begin
  perform holdfast.notify_readers_of_message_table(
    (holdfast.get_message_table_names(p_queue)).p_messages::regclass, lower(p_queue));
end
$$;

-- Create the trigger that notifies sleeping readers of a queue. Repeatable; takes a short lock on the queue the first
-- time.
create or replace function holdfast.enable_message_wakeups(p_queue text) returns void
language plpgsql security definer set search_path = ''
as $$
declare
  v_table regclass := (holdfast.get_message_table_names(p_queue)).p_messages::regclass;
begin
  -- Processes of one worker start together. `if not exists` does not wait for another transaction that creates it.
  perform pg_catalog.pg_advisory_xact_lock(hashtext('holdfast'), hashtext('wakeups:' || v_table::oid));
  execute format('create sequence if not exists holdfast.asleep_%s as bigint minvalue 0 start 0', v_table::oid);
  execute format('create sequence if not exists holdfast.notified_%s as bigint minvalue 0 start 0', v_table::oid);
  if not exists (select from pg_catalog.pg_trigger where tgrelid = v_table and tgname = 'holdfast_wake') then
    execute format(
      'create trigger holdfast_wake after insert on %s
         for each statement execute function holdfast.notify_message_readers(%L)', v_table, lower(p_queue));
  end if;
end
$$;

-- Drop the trigger and the sequences of enable_message_wakeups.
create or replace function holdfast.disable_message_wakeups(p_queue text) returns void
language plpgsql security definer set search_path = ''
as $$
declare
  v_table regclass := (holdfast.get_message_table_names(p_queue)).p_messages::regclass;
begin
  execute format('drop trigger if exists holdfast_wake on %s', v_table);
  execute format('drop sequence if exists holdfast.asleep_%s, holdfast.notified_%s', v_table::oid, v_table::oid);
end
$$;

-- Register that a reader sleeps for p_for. Return when the next of the first thousand invisible messages becomes
-- visible, or null. Read once more before you sleep, and wake up at the returned time at the latest.
create or replace function holdfast.register_sleeping_reader(p_queue text, p_for interval default '30 seconds')
returns timestamptz
language plpgsql security definer set search_path = ''
as $$
declare
  v_table regclass := (holdfast.get_message_table_names(p_queue)).p_messages::regclass;
  v_asleep regclass := holdfast.find_wakeup_sequence(v_table, 'asleep');
  v_until bigint := extract(epoch from clock_timestamp() + p_for) * 1000000;
  v_due timestamptz;
begin
  if v_asleep is null then
    raise exception 'Wakeups are not enabled for queue %.', quote_ident(p_queue)
      using errcode = 'HF005', hint = format('Call holdfast.enable_message_wakeups(%L) first.', p_queue);
  end if;
  if v_until > coalesce(pg_sequence_last_value(v_asleep), 0) then
    perform setval(v_asleep, v_until);
  end if;
  execute format('select min(vt) from (select vt from %s where msg_id >= $1 order by msg_id limit 1000) first', v_table)
    into v_due using holdfast.get_lowest_message_id_hint(p_queue);
  return v_due;
end
$$;

call holdfast.grant_execute('holdfast_worker', 'enable_message_wakeups', 'register_sleeping_reader',
  'wake_message_readers');
call holdfast.grant_execute('service_role', 'enable_message_wakeups', 'register_sleeping_reader', 'wake_message_readers');
