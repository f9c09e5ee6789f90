-- holdfast: unless-extension pgmq
--
-- Send messages. Each function has exactly six overloads: clients call them untyped, and one more would make calls
-- ambiguous.

-- Send one message and return its id.
create or replace function pgmq._send_message(p_queue text, p_message jsonb, p_headers jsonb, p_vt timestamptz)
returns setof bigint
language plpgsql
as $$
begin
  return query execute format(
    'insert into pgmq.%I (vt, message, headers) values ($1, $2, $3) returning msg_id',
    pgmq.format_table_name(p_queue, 'q')) using p_vt, p_message, p_headers;
end
$$;

-- Send several messages and return their ids in order.
create or replace function pgmq._send_messages(p_queue text, p_messages jsonb[], p_headers jsonb[], p_vt timestamptz)
returns setof bigint
language plpgsql
as $$
begin
  perform pgmq._check_message_batch(p_messages, p_headers);
  return query execute pgmq._build_statement_call('send', p_queue) using p_vt, p_messages, p_headers;
end
$$;

-- Raise an error unless the batch has messages and as many headers as messages.
create or replace function pgmq._check_message_batch(p_messages jsonb[], p_headers jsonb[]) returns void
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
as $$ begin return query select pgmq._send_message(queue_name, msg, null, clock_timestamp()); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_message(queue_name, msg, headers, clock_timestamp()); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, delay integer) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_message(queue_name, msg, null, clock_timestamp(
  ) + make_interval(secs => delay)); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, delay timestamptz) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_message(queue_name, msg, null, delay); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay integer) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_message(queue_name, msg, headers, clock_timestamp(
  ) + make_interval(secs => delay)); end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay timestamptz) returns setof bigint
language plpgsql
as $$ begin return query select pgmq._send_message(queue_name, msg, headers, delay); end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[]) returns setof bigint
language plpgsql
as $$
begin
  if coalesce(cardinality(msgs), 0) = 0 then
    perform pgmq._check_message_batch(msgs, null);
  end if;
  return query execute pgmq._build_statement_call('send', queue_name) using clock_timestamp(), msgs, null::jsonb[];
end
$$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[]) returns setof bigint
language plpgsql
as $$
begin
  perform pgmq._check_message_batch(msgs, headers);
  return query execute pgmq._build_statement_call('send', queue_name) using clock_timestamp(), msgs, headers;
end
$$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], delay integer) returns setof bigint
language plpgsql
as $$
begin
  if coalesce(cardinality(msgs), 0) = 0 then
    perform pgmq._check_message_batch(msgs, null);
  end if;
  return query execute pgmq._build_statement_call('send', queue_name) using clock_timestamp(
    ) + make_interval(secs => delay), msgs, null::jsonb[];
end
$$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], delay timestamptz) returns setof bigint
language plpgsql
as $$
begin
  if coalesce(cardinality(msgs), 0) = 0 then
    perform pgmq._check_message_batch(msgs, null);
  end if;
  return query execute pgmq._build_statement_call('send', queue_name) using delay, msgs, null::jsonb[];
end
$$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay integer)
returns setof bigint
language plpgsql
as $$
begin
  perform pgmq._check_message_batch(msgs, headers);
  return query execute pgmq._build_statement_call('send', queue_name) using clock_timestamp(
    ) + make_interval(secs => delay), msgs, headers;
end
$$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay timestamptz)
returns setof bigint
language plpgsql
as $$
begin
  perform pgmq._check_message_batch(msgs, headers);
  return query execute pgmq._build_statement_call('send', queue_name) using delay, msgs, headers;
end
$$;
