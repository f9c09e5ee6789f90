-- Dead letters, and the way back. A buried message goes to the dead-letter queue of the policy, or to the archive when
-- there is none; its headers then carry `x-holdfast-dead` with where it came from and why. Nothing is thrown away.

-- Text that went wrong elsewhere must not go wrong here: bounded, and without what jsonb cannot hold.
create or replace function holdfast.death_note(p_queue text, p_error text) returns jsonb
language sql stable set search_path = ''
as $$
  select jsonb_build_object('queue', p_queue, 'died_at', holdfast.now(), 'error', left(coalesce(p_error, ''), 4000))
$$;

create or replace function holdfast.bury_messages(p_queue text, p_receipts text[], p_error text default null)
returns setof bigint
language plpgsql set search_path = ''
as $$
declare
  v_policy holdfast.message_policies := holdfast.message_policy(p_queue);
  v_tables record := holdfast.check_queue(p_queue);
  v_target text;
  v_gone bigint[];
begin
  if coalesce(cardinality(p_receipts), 0) = 0 then
    return;
  end if;
  -- In a queue the message gets a new id and may be read at once; in the archive it stays what it was.
  if v_policy.dead_letter_queue is null then
    v_target := format('insert into %s (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
      select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from noted', v_tables.p_archive);
  else
    v_target := format('insert into %s (vt, message, headers) select clock_timestamp(), message, headers from noted order by msg_id',
      (holdfast.check_queue(v_policy.dead_letter_queue)).p_messages);
  end if;
  execute format(
    'with gone as (
       delete from %s m where %s
       returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
     ), noted as (
       select g.msg_id, g.read_ct, g.enqueued_at, g.last_read_at, g.vt, g.message,
              case jsonb_typeof(g.headers) when ''object'' then g.headers else ''{}'' end || jsonb_build_object(
                ''x-holdfast-dead'', $3 || jsonb_build_object(''msg_id'', g.msg_id, ''read_ct'', g.read_ct,
                  ''enqueued_at'', g.enqueued_at, ''headers'', g.headers) || jsonb_strip_nulls(jsonb_build_object(
                  ''error_before'', nullif(e.error, $3 ->> ''error'')))) as headers
         from gone g left join lateral holdfast.message_error($4, g.msg_id, g.enqueued_at) e on true
     ), buried as (%s)
     select coalesce(array_agg(msg_id order by msg_id), ''{}'') from gone',
    v_tables.p_messages, holdfast.receipt_condition(), v_target)
    into v_gone using holdfast.receipt_ids(p_receipts), p_receipts, holdfast.death_note(p_queue, p_error), p_queue;
  perform holdfast.forget_message_errors(p_queue, v_gone);
  return query select unnest(v_gone);
end
$$;

-- Put messages back into a queue, as new ones, with the headers they had: from its archive, or from its dead letters.
-- Without ids the oldest p_limit go.
create or replace function holdfast.requeue_messages(
  p_queue text, p_from text default 'dead', p_msg_ids bigint[] default null, p_limit integer default 1000
) returns table (old_id bigint, new_id bigint)
language plpgsql set search_path = ''
as $$
declare
  v_target text := (holdfast.check_queue(p_queue)).p_messages;
  v_dead_queue text := (holdfast.message_policy(p_queue)).dead_letter_queue;
  v_source text;
  v_condition text := 'true';
begin
  if p_from = 'archive' or (p_from = 'dead' and v_dead_queue is null) then
    v_source := (holdfast.check_queue(p_queue)).p_archive;
  elsif p_from = 'dead' then
    v_source := (holdfast.check_queue(v_dead_queue)).p_messages;
  else
    raise exception 'Messages come back from "dead" or "archive", not from %.', coalesce(quote_literal(p_from), 'null')
      using errcode = 'HF004', column = 'from';
  end if;
  if p_from = 'dead' then
    v_condition := 'lower(s.headers #>> ''{x-holdfast-dead,queue}'') = lower($3)';
  end if;
  -- Both lists are in id order, so the n-th that left is the n-th that arrived.
  return query execute format(
    'with gone as (
       delete from %1$s t where t.msg_id = any (array(
         select s.msg_id from %1$s s where ($1 is null or s.msg_id = any ($1)) and %2$s
          order by s.msg_id limit $2 for update skip locked))
       returning t.msg_id, t.message, t.headers
     ), sent as (
       insert into %3$s (vt, message, headers)
       select clock_timestamp(), g.message,
              case when g.headers ? ''x-holdfast-dead'' then nullif(g.headers #> ''{x-holdfast-dead,headers}'', ''null'')
                   else g.headers end
         from gone g order by g.msg_id
       returning msg_id
     )
     select o.msg_id, n.msg_id
       from (select msg_id, row_number() over (order by msg_id) as place from gone) o
       join (select msg_id, row_number() over (order by msg_id) as place from sent) n using (place)
      order by 1', v_source, v_condition, v_target) using p_msg_ids, p_limit, p_queue;
end
$$;

-- Look without taking: from a queue, its archive or its dead letters, from an id on.
create or replace function holdfast.peek_messages(
  p_queue text, p_qty integer default 10, p_from text default 'queue', p_after bigint default null
) returns setof pgmq.message_record
language plpgsql stable set search_path = ''
as $$
declare
  v_dead_queue text := (holdfast.message_policy(p_queue)).dead_letter_queue;
  v_source text;
  v_condition text := 'true';
begin
  v_source := case
    when p_from = 'queue' then (holdfast.check_queue(p_queue)).p_messages
    when p_from = 'archive' or (p_from = 'dead' and v_dead_queue is null) then (holdfast.check_queue(p_queue)).p_archive
    when p_from = 'dead' then (holdfast.check_queue(v_dead_queue)).p_messages
  end;
  if v_source is null then
    raise exception 'Messages lie in "queue", "archive" or "dead", not in %.', coalesce(quote_literal(p_from), 'null')
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

call holdfast.allow('holdfast_worker', 'death_note', 'bury_messages', 'requeue_messages', 'peek_messages');
call holdfast.allow('service_role', 'death_note', 'bury_messages', 'requeue_messages', 'peek_messages');
