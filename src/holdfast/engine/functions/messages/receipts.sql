-- Messages with receipts, on top of any pgmq from 1.10 on.
--
-- The protocol. A read increments read_ct and sets last_read_at. With the id they are the receipt of that read, written
-- `id.read_ct.microseconds`. Extending the visibility timeout keeps them; every other read changes them. So archive,
-- delete, set_vt and fail with a receipt run one statement that compares it, and refuse with HF001 when the message was
-- read again or is gone: no reader finishes a message that another one is working on. The plain pgmq functions check no
-- receipts. Visibility uses holdfast.now() here, and clock_timestamp() in the plain functions.

-- Return the receipt of one read of a message.
create or replace function holdfast.build_message_receipt(p_msg_id bigint, p_read_ct integer, p_read_at timestamptz)
returns text
language sql immutable parallel safe
as $$ select p_msg_id || '.' || p_read_ct || '.' || (extract(epoch from p_read_at) * 1000000)::bigint $$;

-- Return the message ids of receipts. Raise HF004 for an invalid receipt.
create or replace function holdfast.parse_receipt_message_ids(p_receipts text[]) returns bigint[]
language plpgsql immutable set search_path = ''
as $$
declare
  v_receipt text;
begin
  foreach v_receipt in array coalesce(p_receipts, '{}') loop
    if v_receipt is null or v_receipt !~ '^-?\d{1,19}\.\d{1,10}\.\d{1,19}$' then
      raise exception 'Invalid receipt: %.', coalesce(left(v_receipt, 60), 'null')
        using errcode = 'HF004', column = 'receipts', hint = 'Pass a receipt that holdfast.read_messages returned.';
    end if;
  end loop;
  return array(select split_part(r, '.', 1)::bigint from unnest(p_receipts) r);
end
$$;

-- Raise HF001 if receipts had no effect because they are stale, unless p_strict is false.
create or replace function holdfast.raise_for_stale_receipts(p_queue text, p_receipts text[], p_done bigint[],
  p_strict boolean)
returns void
language plpgsql immutable set search_path = ''
as $$
declare
  v_stale bigint[] := array(
    select distinct id from unnest(holdfast.parse_receipt_message_ids(p_receipts)) id where id <> all (p_done)
      order by 1);
begin
  if p_strict and cardinality(v_stale) > 0 then
    raise exception 'Message % of queue % was read again by another reader, or is gone.', v_stale[1],
      quote_ident(p_queue)
      using errcode = 'HF001', detail = format('Stale: %s', v_stale),
        hint = 'Stop working on the message; nothing was changed.';
  end if;
end
$$;

-- Return the SQL condition that compares receipts ($1 ids, $2 receipts). Every statement with receipts uses this text.
create or replace function holdfast.build_receipt_condition() returns text
language sql immutable
as $$
  select 'm.msg_id = any ($1) and holdfast.build_message_receipt(m.msg_id, m.read_ct, m.last_read_at) = any ($2)'
$$;

-- Read up to p_qty messages, each with a receipt. Move messages that were read too often to the dead letters.
create or replace function holdfast.read_messages(
  p_queue text, p_vt interval default null, p_qty integer default 1, p_filter jsonb default '{}'
) returns table (
  msg_id bigint, read_ct integer, enqueued_at timestamptz, last_read_at timestamptz, vt timestamptz,
  message jsonb, headers jsonb, receipt text
)
language plpgsql set search_path = ''
as $$
#variable_conflict use_column
declare
  v_policy holdfast.message_policies := holdfast.get_message_policy(p_queue);
  v_seconds double precision := extract(epoch from coalesce(p_vt, v_policy.vt));
  v_messages_read pgmq.message_record[];
  v_exhausted text[];
begin
  perform holdfast.get_message_table_names(p_queue);
  loop
    v_messages_read := holdfast.read_messages_ignoring_policy(p_queue, v_seconds, p_qty, p_filter);
    v_exhausted := array(
      select holdfast.build_message_receipt(f.msg_id, f.read_ct, f.last_read_at) from unnest(v_messages_read) f
       where f.read_ct > v_policy.max_reads);
    if cardinality(v_exhausted) > 0 then
      perform holdfast.move_to_dead_letters(p_queue, v_exhausted, 'read more than max_reads times');
    end if;
    exit when cardinality(v_exhausted) = 0 or cardinality(v_exhausted) < cardinality(v_messages_read);
  end loop;
  return query
  select f.*, holdfast.build_message_receipt(f.msg_id, f.read_ct, f.last_read_at)
    from unnest(v_messages_read) f
   where f.read_ct <= coalesce(v_policy.max_reads, f.read_ct) order by f.msg_id;
end
$$;

-- Read messages without the max_reads limit of the policy.
create or replace function holdfast.read_messages_ignoring_policy(
  p_queue text, p_seconds double precision, p_qty integer, p_filter jsonb
) returns pgmq.message_record[]
language plpgsql
as $$
begin
  if to_regprocedure('pgmq._read_messages(text,double precision,integer,jsonb,timestamptz)') is not null then
    return array(select t from pgmq._read_messages(p_queue, p_seconds, p_qty, p_filter, holdfast.now()) t);
  end if;
  return array(select t from pgmq.read(p_queue, ceil(p_seconds)::integer, p_qty, coalesce(p_filter, '{}')) t);
end
$$;

-- Archive messages by receipt and return their ids.
create or replace function holdfast.archive_messages(p_queue text, p_receipts text[], p_strict boolean default true)
returns setof bigint
language plpgsql set search_path = ''
as $$
declare
  v_messages text;
  v_archive text;
  v_done bigint[];
  v_was_retried boolean;
begin
  select t.p_messages, t.p_archive into v_messages, v_archive from holdfast.get_message_table_names(p_queue) t;
  execute format(
    'with deleted as (
       delete from %s m where %s
       returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
     ), kept as (
       insert into %s (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers) select * from deleted
       returning msg_id, read_ct
     )
     select coalesce(array_agg(msg_id order by msg_id), ''{}''), bool_or(read_ct > 1) from kept',
    v_messages, holdfast.build_receipt_condition(), v_archive)
    into v_done, v_was_retried using holdfast.parse_receipt_message_ids(p_receipts), p_receipts;
  perform holdfast.raise_for_stale_receipts(p_queue, p_receipts, v_done, p_strict);
  if v_was_retried then  -- only a message that was read twice can have an error
    perform holdfast.delete_message_errors(p_queue, v_done);
  end if;
  return query select unnest(v_done);
end
$$;

-- Delete messages by receipt and return their ids.
create or replace function holdfast.delete_messages(p_queue text, p_receipts text[], p_strict boolean default true)
returns setof bigint
language plpgsql set search_path = ''
as $$
declare
  v_done bigint[];
  v_was_retried boolean;
begin
  execute format(
    'with deleted as (delete from %s m where %s returning m.msg_id, m.read_ct)
     select coalesce(array_agg(msg_id order by msg_id), ''{}''), bool_or(read_ct > 1) from deleted',
    (holdfast.get_message_table_names(p_queue)).p_messages, holdfast.build_receipt_condition())
    into v_done, v_was_retried using holdfast.parse_receipt_message_ids(p_receipts), p_receipts;
  perform holdfast.raise_for_stale_receipts(p_queue, p_receipts, v_done, p_strict);
  if v_was_retried then
    perform holdfast.delete_message_errors(p_queue, v_done);
  end if;
  return query select unnest(v_done);
end
$$;

-- Keep messages invisible for p_vt from now; zero makes them visible. The receipts stay valid.
create or replace function holdfast.set_message_vt(
  p_queue text, p_receipts text[], p_vt interval, p_strict boolean default true
) returns setof bigint
language plpgsql set search_path = ''
as $$
declare
  v_done bigint[];
begin
  execute format(
    'with moved as (update %s m set vt = $3 where %s returning m.msg_id)
     select coalesce(array_agg(msg_id order by msg_id), ''{}'') from moved',
    (holdfast.get_message_table_names(p_queue)).p_messages, holdfast.build_receipt_condition())
    into v_done using holdfast.parse_receipt_message_ids(p_receipts), p_receipts, holdfast.now() + p_vt;
  perform holdfast.raise_for_stale_receipts(p_queue, p_receipts, v_done, p_strict);
  return query select unnest(v_done);
end
$$;

-- Make failed messages invisible for the backoff of the policy and save the error. Stale receipts are skipped.
create or replace function holdfast.retry_messages(p_queue text, p_receipts text[], p_error text default null)
returns table (msg_id bigint, vt timestamptz)
language plpgsql set search_path = ''
as $$
#variable_conflict use_column
declare
  v_policy holdfast.message_policies := holdfast.get_message_policy(p_queue);
  v_moved jsonb;
begin
  execute format(
    'with moved as (
       update %s m
          set vt = $3 + least($4, $5 * power(2, least(greatest(m.read_ct, 1), 27) - 1)) * (0.9 + 0.2 * random())
        where %s returning m.msg_id, m.vt, m.enqueued_at, m.read_ct)
     select coalesce(jsonb_agg(to_jsonb(moved) order by msg_id), ''[]'') from moved',
    (holdfast.get_message_table_names(p_queue)).p_messages, holdfast.build_receipt_condition())
    into v_moved using holdfast.parse_receipt_message_ids(p_receipts), p_receipts, holdfast.now(
      ), v_policy.backoff_cap, v_policy.backoff;
  perform holdfast.save_message_errors(p_queue, v_moved, p_error);
  return query select m.msg_id, m.vt from jsonb_to_recordset(v_moved) m (msg_id bigint, vt timestamptz) order by 1;
end
$$;

-- Record a failed attempt: the message is retried, or moved to the dead letters when it was read max_reads times.
create or replace function holdfast.fail_messages(
  p_queue text, p_receipts text[], p_error text default null, p_strict boolean default true
) returns table (msg_id bigint, outcome text, vt timestamptz)
language plpgsql set search_path = ''
as $$
#variable_conflict use_column
declare
  v_max_reads integer := (holdfast.get_message_policy(p_queue)).max_reads;
  v_exhausted text[];
  v_dead bigint[];
  v_retried bigint[];
  v_until timestamptz[];
begin
  perform holdfast.parse_receipt_message_ids(p_receipts);  -- raises HF004 for an invalid receipt
  v_exhausted := array(select r from unnest(p_receipts) r where split_part(r, '.', 2)::integer >= v_max_reads);
  v_dead := array(select holdfast.move_to_dead_letters(p_queue, v_exhausted, p_error));
  select coalesce(array_agg(r.msg_id), '{}'), array_agg(r.vt) into v_retried, v_until
    from holdfast.retry_messages(p_queue, array(select r from unnest(p_receipts) r where r <> all (v_exhausted)),
      p_error) r;
  perform holdfast.raise_for_stale_receipts(p_queue, p_receipts, v_dead || v_retried, p_strict);
  return query
  select r.id, 'retry', r.at from unnest(v_retried, v_until) r (id, at)
  union all
  select d, 'dead', null from unnest(v_dead) d
  order by 1;
end
$$;

call holdfast.grant_execute('holdfast_worker', 'build_message_receipt', 'parse_receipt_message_ids',
  'raise_for_stale_receipts',
  'build_receipt_condition', 'read_messages', 'read_messages_ignoring_policy', 'archive_messages', 'delete_messages',
  'set_message_vt', 'retry_messages', 'fail_messages');
call holdfast.grant_execute('service_role', 'build_message_receipt', 'parse_receipt_message_ids',
  'raise_for_stale_receipts',
  'build_receipt_condition', 'read_messages', 'read_messages_ignoring_policy', 'archive_messages', 'delete_messages',
  'set_message_vt', 'retry_messages', 'fail_messages');
