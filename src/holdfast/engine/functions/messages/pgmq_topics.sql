-- holdfast: unless-extension pgmq
--
-- Topics: a message goes to every queue that is bound to a pattern that matches its routing key, one copy per queue. A
-- star matches one or more characters without a dot, a hash any text. The pattern is stored as an anchored regular
-- expression.

-- Raise an error unless a routing key or topic pattern is valid.
create or replace function pgmq._check_topic_text(
  p_text text, p_argument text, p_allowed text, p_allowed_text text) returns void
language plpgsql immutable set search_path = ''
as $$
begin
  if coalesce(p_text, '') = '' then
    raise exception '% cannot be NULL or empty', p_argument;
  elsif char_length(p_text) > 255 then
    raise exception '% length cannot exceed 255 characters, got % characters', p_argument, char_length(p_text);
  elsif p_text !~ p_allowed then
    raise exception '% contains invalid characters. Only % are allowed. Got: %', p_argument, p_allowed_text, p_text;
  elsif p_text like '.%' then
    raise exception '% cannot start with a dot. Got: %', p_argument, p_text;
  elsif p_text like '%.' then
    raise exception '% cannot end with a dot. Got: %', p_argument, p_text;
  elsif p_text like '%..%' then
    raise exception '% cannot contain consecutive dots. Got: %', p_argument, p_text;
  end if;
end
$$;

create or replace function pgmq.validate_routing_key(routing_key text) returns boolean
language plpgsql immutable set search_path = ''
as $$
begin
  perform pgmq._check_topic_text(routing_key, 'routing_key', '^[a-zA-Z0-9._-]+$',
    'alphanumeric, dots, hyphens, and underscores');
  return true;
end
$$;

create or replace function pgmq.validate_topic_pattern(pattern text) returns boolean
language plpgsql immutable set search_path = ''
as $$
begin
  perform pgmq._check_topic_text(pattern, 'pattern', '^[a-zA-Z0-9._*#-]+$',
    'alphanumeric, dots, hyphens, underscores, *, and #');
  if pattern like '%**%' then
    raise exception 'pattern cannot contain consecutive stars (**). Got: %',
      pattern using hint = 'Use # to match across dots.';
  elsif pattern like '%##%' then
    raise exception 'pattern cannot contain consecutive hashes (##). Got: %',
      pattern using hint = 'One # matches any text.';
  elsif pattern ~ '\*#|#\*' then
    raise exception 'pattern cannot contain adjacent wildcards (*# or #*). Got: %',
      pattern using hint = 'One # is enough.';
  end if;
  return true;
end
$$;

create or replace function pgmq.bind_topic(pattern text, queue_name text) returns void
language plpgsql set search_path = ''
as $$
#variable_conflict use_column
begin
  perform pgmq.validate_topic_pattern($1);
  if coalesce($2, '') = '' then
    raise exception 'queue_name cannot be NULL or empty';
  elsif not exists (select from pgmq.meta m where m.queue_name = $2) then
    raise exception 'Queue "%" does not exist. Create the queue first using pgmq.create()', $2;
  end if;
  insert into pgmq.topic_bindings (pattern, queue_name) values ($1, $2) on conflict (pattern, queue_name) do nothing;
end
$$;

create or replace function pgmq.unbind_topic(pattern text, queue_name text) returns boolean
language plpgsql set search_path = ''
as $$
begin
  if coalesce($1, '') = '' then
    raise exception 'pattern cannot be NULL or empty';
  elsif coalesce($2, '') = '' then
    raise exception 'queue_name cannot be NULL or empty';
  end if;
  delete from pgmq.topic_bindings b where b.pattern = $1 and b.queue_name = $2;
  return found;
end
$$;

create or replace function pgmq.list_topic_bindings()
returns table (pattern text, queue_name text, bound_at timestamptz, compiled_regex text)
language sql stable set search_path = ''
as $$
  select b.pattern, b.queue_name, b.bound_at, b.compiled_regex
    from pgmq.topic_bindings b order by b.bound_at desc, b.pattern, b.queue_name
$$;

create or replace function pgmq.list_topic_bindings(queue_name text)
returns table (pattern text, queue_name text, bound_at timestamptz, compiled_regex text)
language sql stable set search_path = ''
as $$
  select b.pattern, b.queue_name, b.bound_at, b.compiled_regex
    from pgmq.topic_bindings b where b.queue_name = $1 order by b.bound_at desc, b.pattern, b.queue_name
$$;

create or replace function pgmq.test_routing(routing_key text)
returns table (pattern text, queue_name text, compiled_regex text)
language plpgsql stable set search_path = ''
as $$
begin
  perform pgmq.validate_routing_key($1);
  return query
  select b.pattern, b.queue_name, b.compiled_regex
    from pgmq.topic_bindings b where $1 ~ b.compiled_regex order by b.pattern, b.queue_name;
end
$$;

-- List the queues that are bound to a pattern that matches the routing key.
create or replace function pgmq._list_routed_queues(p_key text) returns setof text
language plpgsql stable set search_path = ''
as $$
begin
  perform pgmq.validate_routing_key(p_key);
  return query
  select distinct b.queue_name from pgmq.topic_bindings b where p_key ~ b.compiled_regex order by 1;
end
$$;

create or replace function pgmq.send_topic(routing_key text, msg jsonb, headers jsonb, delay integer) returns integer
language plpgsql
as $$
declare
  v_queue text;
  v_count integer := 0;
begin
  perform pgmq.validate_routing_key(routing_key);
  if msg is null then
    raise exception 'msg cannot be NULL';
  elsif delay < 0 then
    raise exception 'delay cannot be negative, got: %', delay;
  end if;
  for v_queue in select pgmq._list_routed_queues(routing_key) loop
    perform pgmq._send_message(v_queue, msg, headers, clock_timestamp() + make_interval(secs => delay));
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;

create or replace function pgmq.send_topic(routing_key text, msg jsonb) returns integer
language plpgsql
as $$ begin return pgmq.send_topic(routing_key, msg, null, 0); end $$;

create or replace function pgmq.send_topic(routing_key text, msg jsonb, delay integer) returns integer
language plpgsql
as $$ begin return pgmq.send_topic(routing_key, msg, null, delay); end $$;

-- Not in pgmq, but its Python client calls it.
create or replace function pgmq.send_topic(routing_key text, msg jsonb, headers jsonb) returns integer
language plpgsql
as $$ begin return pgmq.send_topic(routing_key, msg, headers, 0); end $$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[], delay timestamptz)
returns table (queue_name text, msg_id bigint)
language plpgsql
as $$
declare
  v_queue text;
begin
  perform pgmq.validate_routing_key(routing_key);
  perform pgmq._check_message_batch(msgs, headers);
  for v_queue in select pgmq._list_routed_queues(routing_key) loop
    return query select v_queue, s.id from pgmq._send_messages(v_queue, msgs, headers, delay) as s (id);
  end loop;
end
$$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[])
returns table (queue_name text, msg_id bigint)
language plpgsql
as $$ begin return query select * from pgmq.send_batch_topic(routing_key, msgs, null::jsonb[], clock_timestamp(
  )); end $$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[])
returns table (queue_name text, msg_id bigint)
language plpgsql
as $$ begin return query select * from pgmq.send_batch_topic(routing_key, msgs, headers, clock_timestamp()); end $$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], delay timestamptz)
returns table (queue_name text, msg_id bigint)
language plpgsql
as $$ begin return query select * from pgmq.send_batch_topic(routing_key, msgs, null::jsonb[], delay); end $$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], delay integer)
returns table (queue_name text, msg_id bigint)
language plpgsql
as $$
begin
  return query select * from pgmq.send_batch_topic(
    routing_key, msgs, null::jsonb[], clock_timestamp() + make_interval(secs => delay));
end
$$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[], delay integer)
returns table (queue_name text, msg_id bigint)
language plpgsql
as $$
begin
  return query select * from pgmq.send_batch_topic(
    routing_key, msgs, headers, clock_timestamp() + make_interval(secs => delay));
end
$$;
