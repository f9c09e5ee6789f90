-- holdfast: unless-extension pgmq
--
-- Reads that poll until a message is visible. The caller's transaction stays open meanwhile, as in the contract. A
-- worker that listens for wakeups (wakeups.sql) does not need them.

-- Read messages, and poll until a message is visible or p_seconds have passed.
create or replace function pgmq._read_with_poll(
  p_by text, p_queue text, p_vt integer, p_qty integer, p_seconds integer, p_interval_ms integer, p_filter jsonb
) returns setof pgmq.message_record
language plpgsql
as $$
declare
  v_deadline timestamptz := clock_timestamp() + make_interval(secs => coalesce(p_seconds, 0));
  v_interval_s double precision := greatest(coalesce(p_interval_ms, 100), 1) / 1000.0;
begin
  perform pgmq._get_queue_table(p_queue, 'q');
  while clock_timestamp() < v_deadline loop
    if p_by = 'plain' then
      return query select * from pgmq._read_messages(p_queue, p_vt, p_qty, p_filter, clock_timestamp());
    else
      return query select * from pgmq._read_message_groups(p_queue, p_vt, p_qty, p_by, clock_timestamp());
    end if;
    exit when found;
    perform pg_sleep(greatest(0, least(v_interval_s, extract(epoch from v_deadline - clock_timestamp()))));
  end loop;
end
$$;

create or replace function pgmq.read_with_poll(
  queue_name text, vt integer, qty integer,
  max_poll_seconds integer default 5, poll_interval_ms integer default 100, conditional jsonb default '{}'
) returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query
  select * from pgmq._read_with_poll('plain', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, conditional);
end
$$;

create or replace function pgmq.read_grouped_with_poll(
  queue_name text, vt integer, qty integer, max_poll_seconds integer default 5, poll_interval_ms integer default 100
) returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query select * from pgmq._read_with_poll('group', queue_name, vt, qty, max_poll_seconds, poll_interval_ms,
    '{}');
end
$$;

create or replace function pgmq.read_grouped_rr_with_poll(
  queue_name text, vt integer, qty integer, max_poll_seconds integer default 5, poll_interval_ms integer default 100
) returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query select * from pgmq._read_with_poll('rank', queue_name, vt, qty, max_poll_seconds, poll_interval_ms,
    '{}');
end
$$;

create or replace function pgmq.read_grouped_head_with_poll(
  queue_name text, vt integer, qty integer, max_poll_seconds integer default 5, poll_interval_ms integer default 100
) returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query select * from pgmq._read_with_poll('head', queue_name, vt, qty, max_poll_seconds, poll_interval_ms,
    '{}');
end
$$;
