-- Waking readers without one NOTIFY per message.
--
-- The protocol. A reader that found nothing says how long it is going to sleep (wait_messages) and reads once more before
-- it does; it listens on channel holdfast_messages, whose payload is the queue. Whoever inserts looks at that time: while
-- somebody sleeps, the first insert of every 50 ms notifies; when nobody does, none. Both times are in sequences, so
-- nothing is locked and no row versions pile up. A message can commit just after the last look of a reader and
-- within 50 ms of a notification, so a reader sleeps no longer than its safety poll. NOTIFY is a hint, polling the truth.

create or replace function holdfast.wake_sequence(p_table oid, p_kind text) returns regclass
language plpgsql stable
as $$ begin return to_regclass('holdfast.' || p_kind || '_' || p_table); end $$;

create or replace function holdfast.wake_message_readers() returns trigger
language plpgsql security definer set search_path = ''
as $$
declare
  v_now bigint := extract(epoch from clock_timestamp()) * 1000000;
  v_sleep regclass := holdfast.wake_sequence(tg_relid, 'asleep');
  v_told regclass := holdfast.wake_sequence(tg_relid, 'told');
begin
  if v_now < coalesce(pg_sequence_last_value(v_sleep), 0) and v_now >= coalesce(pg_sequence_last_value(v_told), 0) + 50000 then
    perform setval(v_told, v_now);
    perform pg_notify('holdfast_messages', tg_argv[0]);
  end if;
  return null;
end
$$;

-- Let inserts into this queue wake readers. Repeatable; takes a short lock on the queue the first time.
create or replace function holdfast.enable_wakeups(p_queue text) returns void
language plpgsql security definer set search_path = ''
as $$
declare
  v_table regclass := (holdfast.check_queue(p_queue)).p_messages::regclass;
begin
  execute format('create sequence if not exists holdfast.asleep_%s as bigint minvalue 0 start 0', v_table::oid);
  execute format('create sequence if not exists holdfast.told_%s as bigint minvalue 0 start 0', v_table::oid);
  if not exists (select from pg_catalog.pg_trigger where tgrelid = v_table and tgname = 'holdfast_wake') then
    execute format(
      'create trigger holdfast_wake after insert on %s
         for each statement execute function holdfast.wake_message_readers(%L)', v_table, lower(p_queue));
  end if;
end
$$;

create or replace function holdfast.disable_wakeups(p_queue text) returns void
language plpgsql security definer set search_path = ''
as $$
declare
  v_table regclass := (holdfast.check_queue(p_queue)).p_messages::regclass;
begin
  execute format('drop trigger if exists holdfast_wake on %s', v_table);
  execute format('drop sequence if exists holdfast.asleep_%s, holdfast.told_%s', v_table::oid, v_table::oid);
end
$$;

-- "I am going to sleep for p_for." The answer is when the next of the first thousand invisible messages comes back, or
-- null; read once more before sleeping, and sleep no longer than that.
create or replace function holdfast.wait_messages(p_queue text, p_for interval default '30 seconds')
returns timestamptz
language plpgsql security definer set search_path = ''
as $$
declare
  v_table regclass := (holdfast.check_queue(p_queue)).p_messages::regclass;
  v_sleep regclass := holdfast.wake_sequence(v_table, 'asleep');
  v_until bigint := extract(epoch from clock_timestamp() + p_for) * 1000000;
  v_due timestamptz;
begin
  if v_sleep is null then
    raise exception 'Queue % wakes nobody.', quote_ident(p_queue)
      using errcode = 'HF005', hint = format('Call holdfast.enable_wakeups(%L) first.', p_queue);
  end if;
  if v_until > coalesce(pg_sequence_last_value(v_sleep), 0) then
    perform setval(v_sleep, v_until);
  end if;
  execute format('select min(vt) from (select vt from %s where msg_id >= $1 order by msg_id limit 1000) first', v_table)
    into v_due using holdfast.first_position(p_queue);
  return v_due;
end
$$;

call holdfast.allow('holdfast_worker', 'enable_wakeups', 'wait_messages');
call holdfast.allow('service_role', 'enable_wakeups', 'disable_wakeups', 'wait_messages');
