-- holdfast: unless-extension pgmq
--
-- Sending. Six signatures each, no more: clients call them untyped, and one overload more makes calls ambiguous.

create or replace function pgmq._send(p_queue text, p_message jsonb, p_headers jsonb, p_vt timestamptz)
returns setof bigint
language plpgsql
as $$
begin
  return query execute format(
    'insert into pgmq.%I (vt, message, headers) values ($1, $2, $3) returning msg_id',
    pgmq.format_table_name(p_queue, 'q')) using p_vt, p_message, p_headers;
end
$$;

-- Rows of unnest come in the order of the array, ids are drawn and returned in that order.
create or replace function pgmq._send_batch(p_queue text, p_messages jsonb[], p_headers jsonb[], p_vt timestamptz)
returns setof bigint
language plpgsql
as $$
begin
  perform pgmq._check_batch(p_messages, p_headers);
  if p_headers is null then
    return query execute format(
      'insert into pgmq.%I (vt, message) select $1, u.message from unnest($2) as u (message) returning msg_id',
      pgmq.format_table_name(p_queue, 'q')) using p_vt, p_messages;
  else
    return query execute format(
      'insert into pgmq.%I (vt, message, headers)
       select $1, u.message, u.headers from unnest($2, $3) as u (message, headers) returning msg_id',
      pgmq.format_table_name(p_queue, 'q')) using p_vt, p_messages, p_headers;
  end if;
end
$$;

create or replace function pgmq._check_batch(p_messages jsonb[], p_headers jsonb[]) returns void
language plpgsql immutable
as $$
begin
  if coalesce(cardinality(p_messages), 0) = 0 then
    raise exception 'msgs cannot be NULL or empty';
  end if;
  if cardinality(p_headers) <> cardinality(p_messages) then
    raise exception 'headers array length (%) must match msgs array length (%)',
      cardinality(p_headers), cardinality(p_messages);
  end if;
end
$$;

create or replace function pgmq.send(queue_name text, msg jsonb) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send(queue_name, msg, null, clock_timestamp()); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send(queue_name, msg, headers, clock_timestamp()); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, delay integer) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send(queue_name, msg, null, clock_timestamp() + make_interval(secs => delay)); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, delay timestamptz) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send(queue_name, msg, null, delay); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay integer) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send(queue_name, msg, headers, clock_timestamp() + make_interval(secs => delay)); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay timestamptz) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send(queue_name, msg, headers, delay); end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[]) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_batch(queue_name, msgs, null, clock_timestamp()); end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[]) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_batch(queue_name, msgs, headers, clock_timestamp()); end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], delay integer) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_batch(queue_name, msgs, null, clock_timestamp() + make_interval(secs => delay)); end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], delay timestamptz) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_batch(queue_name, msgs, null, delay); end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay integer)
returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_batch(queue_name, msgs, headers, clock_timestamp() + make_interval(secs => delay)); end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay timestamptz)
returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_batch(queue_name, msgs, headers, delay); end $$;
