-- Dead letters: move messages to them, look at them, and requeue them. A dead letter goes to the dead-letter queue of
-- the policy, or to the archive when there is none. Its header `x-holdfast-dead` has its queue and the reason. No
-- message is lost.

-- Move messages to the dead letters and return their ids. Stale receipts are skipped.
create or replace function holdfast.move_to_dead_letters(p_queue text, p_receipts text[], p_error text default null)
returns setof bigint
language plpgsql set search_path = ''
as $$
declare
  v_policy holdfast.message_policies := holdfast.get_message_policy(p_queue);
  v_tables record := holdfast.get_message_table_names(p_queue);
  -- The error is truncated, so that the header stays small.
  v_header jsonb := jsonb_build_object(
    'queue', p_queue, 'died_at', holdfast.now(), 'error', left(coalesce(p_error, ''), 4000));
  v_target text;
  v_moved bigint[];
begin
  if coalesce(cardinality(p_receipts), 0) = 0 then
    return;
  end if;
  -- In a queue the message gets a new id and is visible at once; in the archive it keeps its id.
  if v_policy.dead_letter_queue is null then
    v_target := format('insert into %s (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
      select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from dead_letters', v_tables.p_archive);
  else
    v_target := format('insert into %s (vt, message, headers)
      select clock_timestamp(), message, headers from dead_letters order by msg_id',
      (holdfast.get_message_table_names(v_policy.dead_letter_queue)).p_messages);
  end if;
  execute format(
    'with deleted as (
       delete from %s m where %s
       returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
     ), dead_letters as (
       select g.msg_id, g.read_ct, g.enqueued_at, g.last_read_at, g.vt, g.message,
              case jsonb_typeof(g.headers) when ''object'' then g.headers else ''{}'' end || jsonb_build_object(
                ''x-holdfast-dead'', $3 || jsonb_build_object(''msg_id'', g.msg_id, ''read_ct'', g.read_ct,
                  ''enqueued_at'', g.enqueued_at, ''headers'', g.headers) || jsonb_strip_nulls(jsonb_build_object(
                  ''error_before'', nullif(e.error, $3 ->> ''error'')))) as headers
         from deleted g left join lateral holdfast.get_message_error($4, g.msg_id, g.enqueued_at) e on true
     ), stored as (%s)
     select coalesce(array_agg(msg_id order by msg_id), ''{}'') from deleted',
    v_tables.p_messages, holdfast.build_receipt_condition(), v_target)
    into v_moved using holdfast.parse_receipt_message_ids(p_receipts), p_receipts, v_header, p_queue;
  perform holdfast.delete_message_errors(p_queue, v_moved);
  return query select unnest(v_moved);
end
$$;

-- Move messages from the archive or the dead letters back into the queue, as new messages with their original headers.
-- Without ids it moves the oldest p_limit messages.
create or replace function holdfast.requeue_messages(
  p_queue text, p_from text default 'dead', p_msg_ids bigint[] default null, p_limit integer default 1000
) returns table (old_id bigint, new_id bigint)
language plpgsql set search_path = ''
as $$
declare
  v_target text := (holdfast.get_message_table_names(p_queue)).p_messages;
  v_dead_queue text := (holdfast.get_message_policy(p_queue)).dead_letter_queue;
  v_source text;
  v_condition text := 'true';
begin
  if p_from = 'archive' or (p_from = 'dead' and v_dead_queue is null) then
    v_source := (holdfast.get_message_table_names(p_queue)).p_archive;
  elsif p_from = 'dead' then
    v_source := (holdfast.get_message_table_names(v_dead_queue)).p_messages;
  else
    raise exception 'Invalid source %; messages are requeued from "dead" or "archive".',
      coalesce(quote_literal(p_from), 'null')
      using errcode = 'HF004', column = 'from';
  end if;
  if p_from = 'dead' then
    v_condition := 'lower(s.headers #>> ''{x-holdfast-dead,queue}'') = lower($3)';
  end if;
  -- Both lists are in id order, so the n-th deleted message is the n-th sent message.
  return query execute format(
    'with deleted as (
       delete from %1$s t where t.msg_id = any (array(
         select s.msg_id from %1$s s where ($1 is null or s.msg_id = any ($1)) and %2$s
          order by s.msg_id limit $2 for update skip locked))
       returning t.msg_id, t.message, t.headers
     ), sent as (
       insert into %3$s (vt, message, headers)
       select clock_timestamp(), g.message,
              case when g.headers ? ''x-holdfast-dead''
                   then nullif(g.headers #> ''{x-holdfast-dead,headers}'', ''null'')
                   else g.headers end
         from deleted g order by g.msg_id
       returning msg_id
     )
     select o.msg_id, n.msg_id
       from (select msg_id, row_number() over (order by msg_id) as place from deleted) o
       join (select msg_id, row_number() over (order by msg_id) as place from sent) n using (place)
      order by 1', v_source, v_condition, v_target) using p_msg_ids, p_limit, p_queue;
end
$$;

-- Return messages of a queue, its archive or its dead letters after an id, without reading them.
create or replace function holdfast.peek_messages(
  p_queue text, p_qty integer default 10, p_from text default 'queue', p_after bigint default null
) returns setof pgmq.message_record
language plpgsql stable set search_path = ''
as $$
declare
  v_dead_queue text := (holdfast.get_message_policy(p_queue)).dead_letter_queue;
  v_source text;
  v_condition text := 'true';
begin
  v_source := case
    when p_from = 'queue' then (holdfast.get_message_table_names(p_queue)).p_messages
    when p_from = 'archive' or (p_from = 'dead' and v_dead_queue is null)
      then (holdfast.get_message_table_names(p_queue)).p_archive
    when p_from = 'dead' then (holdfast.get_message_table_names(v_dead_queue)).p_messages
  end;
  if v_source is null then
    raise exception 'Invalid place %; messages are in "queue", "archive" or "dead".',
      coalesce(quote_literal(p_from), 'null')
      using errcode = 'HF004', column = 'from';
  end if;
  if p_from = 'dead' then
    v_condition := 'lower(headers #>> ''{x-holdfast-dead,queue}'') = lower($3)';
  end if;
  return query execute format(
    'select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from %s
      where ($1 is null or msg_id > $1) and %s order by msg_id limit $2', v_source, v_condition)
    using p_after, p_qty, p_queue;
end
$$;

call holdfast.grant_execute('holdfast_worker', 'move_to_dead_letters', 'requeue_messages', 'peek_messages');
call holdfast.grant_execute('service_role', 'move_to_dead_letters', 'requeue_messages', 'peek_messages');
