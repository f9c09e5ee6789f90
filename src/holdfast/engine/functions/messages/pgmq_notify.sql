-- holdfast: unless-extension pgmq
--
-- Insert notifications. One trigger per statement, not per row: PostgreSQL merges equal notifications of a transaction.
-- The time of the last notification is in a sequence, n_<name>. No row is locked, so a sender with an open transaction
-- blocks nobody, and a role with rights on the queue alone can send. The row in notify_insert_throttle is the visible
-- setting; its last_notified_at is updated when that is possible without waiting.

create or replace function pgmq.notify_queue_listeners() returns trigger
language plpgsql
as $$
declare
  -- A trigger that pgmq created has no arguments.
  v_queue text := coalesce(tg_argv[0], substr(tg_table_name, 3));
  v_interval bigint := coalesce(tg_argv[1], '0')::bigint * 1000;
  v_last regclass := pgmq._find_read_hint_sequence(v_queue, 'n');
  v_now bigint := pgmq._get_now_microseconds();
begin
  if v_interval > 0 and v_last is not null then
    if v_now < coalesce(pg_sequence_last_value(v_last), 0) + v_interval then
      return null;
    end if;
    perform setval(v_last, v_now);
  end if;
  perform pg_notify('pgmq.q_' || v_queue || '.INSERT', '');
  if has_table_privilege('pgmq.notify_insert_throttle', 'update') then
    update pgmq.notify_insert_throttle t
       set last_notified_at = clock_timestamp()
     where t.queue_name = any (array(
       select s.queue_name from pgmq.notify_insert_throttle s where s.queue_name = v_queue for update skip locked));
  end if;
  return null;
end
$$;

-- Raise an error unless the interval is valid and the queue exists.
create or replace function pgmq._check_notify_throttle(
  p_queue text, p_interval_ms integer, p_instruction text) returns void
language plpgsql stable set search_path = ''
as $$
begin
  if p_interval_ms is null or p_interval_ms < 0 then
    raise exception 'throttle_interval_ms must be non-negative, got: %', p_interval_ms;
  end if;
  if not exists (select from pgmq.meta m where m.queue_name = p_queue) then
    raise exception 'Queue "%" does not exist. % first using pgmq.create()', p_queue, p_instruction;
  end if;
end
$$;

-- Replace the trigger. The settings are its arguments, so a sender needs no right to read them.
create or replace function pgmq._replace_notify_trigger(p_queue text, p_interval_ms integer) returns void
language plpgsql set search_path = ''
as $$
declare
  v_table regclass := pgmq._get_queue_table(p_queue, 'q');
  v_last text := pgmq.format_table_name(p_queue, 'n');
begin
  if to_regclass(format('pgmq.%I', v_last)) is null then
    execute format('create sequence pgmq.%I as bigint minvalue 0 start 0', v_last);
    execute format('alter sequence pgmq.%I owner to %I', v_last,
      (select pg_get_userbyid(relowner) from pg_catalog.pg_class where oid = v_table));
    execute format('alter sequence pgmq.%I owned by %s.vt', v_last, v_table);
    perform pgmq._grant_sequences(v_table);
  end if;
  perform setval(format('pgmq.%I', v_last)::regclass, 0);
  perform pgmq._drop_notify_trigger(v_table);
  execute format(
    'create trigger trigger_notify_queue_insert_listeners after insert on %s
       for each statement execute function pgmq.notify_queue_listeners(%L, %L)', v_table, p_queue, p_interval_ms);
end
$$;

-- Drop the notify trigger of a queue table.
create or replace function pgmq._drop_notify_trigger(p_table regclass) returns void
language plpgsql set search_path = ''
as $$
begin
  if exists (
    select from pg_catalog.pg_trigger where tgrelid = p_table and tgname = 'trigger_notify_queue_insert_listeners'
  ) then
    execute format('drop trigger trigger_notify_queue_insert_listeners on %s', p_table);
  end if;
end
$$;

create or replace function pgmq.enable_notify_insert(queue_name text, throttle_interval_ms integer default 250)
returns void
language plpgsql set search_path = ''
as $$
#variable_conflict use_column
begin
  perform pgmq._check_notify_throttle($1, $2, 'Create it');
  insert into pgmq.notify_insert_throttle (queue_name, throttle_interval_ms) values ($1, $2)
  on conflict (queue_name) do update
    set throttle_interval_ms = excluded.throttle_interval_ms, last_notified_at = to_timestamp(0);
  perform pgmq._replace_notify_trigger($1, $2);
end
$$;

create or replace function pgmq.update_notify_insert(queue_name text, throttle_interval_ms integer) returns void
language plpgsql set search_path = ''
as $$
begin
  perform pgmq._check_notify_throttle($1, $2, 'Create the queue');
  update pgmq.notify_insert_throttle t
     set throttle_interval_ms = $2, last_notified_at = to_timestamp(0)
   where t.queue_name = $1;
  if not found then
    raise exception 'Queue "%" does not have notify_insert enabled. Enable it first using pgmq.enable_notify_insert()',
      $1;
  end if;
  perform pgmq._replace_notify_trigger($1, $2);
end
$$;

create or replace function pgmq.disable_notify_insert(queue_name text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_table regclass := to_regclass(format('pgmq.%I', pgmq.format_table_name(queue_name, 'q')));
begin
  if v_table is not null then
    perform pgmq._drop_notify_trigger(v_table);
    execute format('drop sequence if exists pgmq.%I', pgmq.format_table_name(queue_name, 'n'));
  end if;
  delete from pgmq.notify_insert_throttle t where t.queue_name = $1;
end
$$;

create or replace function pgmq.list_notify_insert_throttles()
returns table (queue_name text, throttle_interval_ms integer, last_notified_at timestamptz)
language sql stable set search_path = ''
as $$
  select t.queue_name::text, t.throttle_interval_ms, t.last_notified_at
    from pgmq.notify_insert_throttle t order by t.queue_name
$$;
