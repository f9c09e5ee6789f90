-- holdfast: unless-extension pgmq
--
-- archive, delete, set_vt and pop by message id. These functions check no receipt: every caller that knows an id can
-- use them. receipts.sql has the functions that check receipts.

create or replace function pgmq.archive(queue_name text, msg_ids bigint[]) returns setof bigint
language plpgsql
as $$
begin
  return query execute pgmq._build_statement_call('archive', queue_name) using msg_ids;
end
$$;

create or replace function pgmq.archive(queue_name text, msg_id bigint) returns boolean
language plpgsql
as $$
begin
  return exists (select from pgmq.archive(queue_name, array[msg_id]));
end
$$;

create or replace function pgmq.delete(queue_name text, msg_ids bigint[]) returns setof bigint
language plpgsql
as $$
begin
  return query execute pgmq._build_statement_call('delete', queue_name) using msg_ids;
end
$$;

create or replace function pgmq.delete(queue_name text, msg_id bigint) returns boolean
language plpgsql
as $$
declare
  v_count bigint;
begin
  execute format('delete from pgmq.%I where msg_id = $1', pgmq.format_table_name(queue_name, 'q')) using msg_id;
  get diagnostics v_count = row_count;
  return v_count > 0;
end
$$;

create or replace function pgmq.set_vt(queue_name text, msg_ids bigint[], vt timestamptz)
returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query execute format(
    'with moved as (
       update pgmq.%I set vt = $2 where msg_id = any ($1)
       returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers
     )
     select * from moved order by msg_id',
    pgmq.format_table_name(queue_name, 'q')) using msg_ids, vt;
end
$$;

create or replace function pgmq.set_vt(queue_name text, msg_ids bigint[], vt integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq.set_vt(queue_name, msg_ids, clock_timestamp(
  ) + make_interval(secs => vt)); end $$;

create or replace function pgmq.set_vt(queue_name text, msg_id bigint, vt integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq.set_vt(queue_name, array[msg_id], clock_timestamp(
  ) + make_interval(secs => vt)); end $$;

create or replace function pgmq.set_vt(queue_name text, msg_id bigint, vt timestamptz)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq.set_vt(queue_name, array[msg_id], vt); end $$;

-- For clients that send set_vt($1, $2, $3) with untyped parameters: PostgreSQL then chooses this overload.
create or replace function pgmq.set_vt(queue_name text, msg_id text, vt text)
returns setof pgmq.message_record
language plpgsql
as $$
declare
  v_ids bigint[] := case when msg_id like '{%' then msg_id::bigint[] else array[msg_id::bigint] end;
begin
  if vt ~ '^\s*[-+]?\d+\s*$' then
    return query select * from pgmq.set_vt(queue_name, v_ids, vt::integer);
  else
    return query select * from pgmq.set_vt(queue_name, v_ids, vt::timestamptz);
  end if;
end
$$;

create or replace function pgmq.pop(queue_name text, qty integer) returns setof pgmq.message_record
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_head bigint;
begin
  if qty < 0 then
    raise exception 'LIMIT must not be negative' using errcode = '2201W';
  end if;
  v_head := pgmq._find_read_start(queue_name, v_now, '{}');
  if v_head is null then
    return;
  end if;
  return query execute pgmq._build_statement_call('pop', queue_name) using v_head, v_now, qty;
end
$$;

create or replace function pgmq.pop(queue_name text) returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq.pop(queue_name, 1); end $$;
