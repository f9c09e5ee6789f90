-- holdfast: unless-extension pgmq
--
-- Reading with patience. The caller's transaction stays open meanwhile, as the contract has it; a worker that listens
-- for wake-ups (queues_wake.sql) needs none of this.

create or replace function pgmq._poll(
  p_kind text, p_queue text, p_vt integer, p_qty integer, p_seconds integer, p_interval_ms integer, p_filter jsonb
) returns setof pgmq.message_record
language plpgsql
as $$
declare
  v_deadline timestamptz := clock_timestamp() + make_interval(secs => coalesce(p_seconds, 0));
  v_pause double precision := greatest(coalesce(p_interval_ms, 100), 1) / 1000.0;
begin
  perform pgmq._table(p_queue, 'q');
  while clock_timestamp() < v_deadline loop
    if p_kind = 'plain' then
      return query select * from pgmq._take(p_queue, p_vt, p_qty, p_filter, clock_timestamp());
    else
      return query select * from pgmq._read_groups(p_queue, p_vt, p_qty, p_kind, clock_timestamp());
    end if;
    exit when found;
    perform pg_sleep(greatest(0, least(v_pause, extract(epoch from v_deadline - clock_timestamp()))));
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
  select * from pgmq._poll('plain', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, conditional);
end
$$;

create or replace function pgmq.read_grouped_with_poll(
  queue_name text, vt integer, qty integer, max_poll_seconds integer default 5, poll_interval_ms integer default 100
) returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query select * from pgmq._poll('group', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, '{}');
end
$$;

create or replace function pgmq.read_grouped_rr_with_poll(
  queue_name text, vt integer, qty integer, max_poll_seconds integer default 5, poll_interval_ms integer default 100
) returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query select * from pgmq._poll('rank', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, '{}');
end
$$;

create or replace function pgmq.read_grouped_head_with_poll(
  queue_name text, vt integer, qty integer, max_poll_seconds integer default 5, poll_interval_ms integer default 100
) returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query select * from pgmq._poll('head', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, '{}');
end
$$;
