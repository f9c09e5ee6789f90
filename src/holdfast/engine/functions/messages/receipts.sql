-- Messages with receipts, on top of any pgmq from 1.10 on.
--
-- The protocol. A read counts read_ct up and stamps last_read_at; the two together with the id are the receipt of that
-- read, written `id.read_ct.microseconds`. Extending keeps them, every other read changes them. So archive, delete,
-- set_vt and fail with a receipt do their work in one statement that compares it, and refuse with HF001 when
-- the message was read again, or is gone: nobody finishes what somebody else is working on. The plain pgmq signatures
-- know no receipts. Visibility is decided by holdfast.now() here, and by clock_timestamp() in the plain ones.

create or replace function holdfast.message_receipt(p_msg_id bigint, p_read_ct integer, p_read_at timestamptz)
returns text
language sql immutable parallel safe
as $$ select p_msg_id || '.' || p_read_ct || '.' || (extract(epoch from p_read_at) * 1000000)::bigint $$;

-- The ids in receipts; a receipt that is not one is the caller's mistake.
create or replace function holdfast.receipt_ids(p_receipts text[]) returns bigint[]
language plpgsql immutable set search_path = ''
as $$
declare
  v_receipt text;
begin
  foreach v_receipt in array coalesce(p_receipts, '{}') loop
    if v_receipt is null or v_receipt !~ '^-?\d{1,19}\.\d{1,10}\.\d{1,19}$' then
      raise exception 'This is not a receipt: %.', coalesce(left(v_receipt, 60), 'null')
        using errcode = 'HF004', column = 'receipts', hint = 'Pass on what holdfast.read_messages returned.';
    end if;
  end loop;
  return array(select split_part(r, '.', 1)::bigint from unnest(p_receipts) r);
end
$$;

-- Complain about the receipts that had no effect, unless the caller only wants to know which had.
create or replace function holdfast.refuse_stale(p_queue text, p_receipts text[], p_done bigint[], p_strict boolean)
returns void
language plpgsql immutable set search_path = ''
as $$
declare
  v_stale bigint[] := array(
    select distinct id from unnest(holdfast.receipt_ids(p_receipts)) id where id <> all (p_done) order by 1);
begin
  if p_strict and cardinality(v_stale) > 0 then
    raise exception 'Message % of queue % was read again by somebody else, or is gone.', v_stale[1], quote_ident(p_queue)
      using errcode = 'HF001', detail = format('Stale: %s', v_stale), hint = 'Stop working on it; nothing was changed.';
  end if;
end
$$;

-- The part of every statement that compares receipts ($1 ids, $2 receipts). Not inlined by hand anywhere else.
create or replace function holdfast.receipt_condition() returns text
language sql immutable
as $$
  select 'm.msg_id = any ($1) and holdfast.message_receipt(m.msg_id, m.read_ct, m.last_read_at) = any ($2)'
$$;

-- Read up to p_qty messages, each with a receipt. Messages that were read too often are buried on the way.
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
  v_policy holdfast.message_policies := holdfast.message_policy(p_queue);
  v_seconds double precision := extract(epoch from coalesce(p_vt, v_policy.vt));
  v_found pgmq.message_record[];
  v_worn text[];
begin
  perform holdfast.check_queue(p_queue);
  loop
    v_found := holdfast.take_messages(p_queue, v_seconds, p_qty, p_filter);
    v_worn := array(
      select holdfast.message_receipt(f.msg_id, f.read_ct, f.last_read_at) from unnest(v_found) f
       where f.read_ct > v_policy.max_reads);
    if cardinality(v_worn) > 0 then
      perform holdfast.bury_messages(p_queue, v_worn, 'read more often than the policy allows');
    end if;
    exit when cardinality(v_worn) = 0 or cardinality(v_worn) < cardinality(v_found);
  end loop;
  return query
  select f.*, holdfast.message_receipt(f.msg_id, f.read_ct, f.last_read_at)
    from unnest(v_found) f
   where f.read_ct <= coalesce(v_policy.max_reads, f.read_ct) order by f.msg_id;
end
$$;

create or replace function holdfast.take_messages(
  p_queue text, p_seconds double precision, p_qty integer, p_filter jsonb
) returns pgmq.message_record[]
language plpgsql
as $$
begin
  if to_regprocedure('pgmq._take(text,double precision,integer,jsonb,timestamptz)') is not null then
    return array(select t from pgmq._take(p_queue, p_seconds, p_qty, p_filter, holdfast.now()) t);
  end if;
  return array(select t from pgmq.read(p_queue, ceil(p_seconds)::integer, p_qty, coalesce(p_filter, '{}')) t);
end
$$;

create or replace function holdfast.archive_messages(p_queue text, p_receipts text[], p_strict boolean default true)
returns setof bigint
language plpgsql set search_path = ''
as $$
declare
  v_messages text;
  v_archive text;
  v_done bigint[];
  v_again boolean;
begin
  select t.p_messages, t.p_archive into v_messages, v_archive from holdfast.check_queue(p_queue) t;
  execute format(
    'with gone as (
       delete from %s m where %s returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
     ), kept as (
       insert into %s (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers) select * from gone
       returning msg_id, read_ct
     )
     select coalesce(array_agg(msg_id order by msg_id), ''{}''), bool_or(read_ct > 1) from kept',
    v_messages, holdfast.receipt_condition(), v_archive)
    into v_done, v_again using holdfast.receipt_ids(p_receipts), p_receipts;
  perform holdfast.refuse_stale(p_queue, p_receipts, v_done, p_strict);
  if v_again then  -- only these can have an error
    perform holdfast.forget_message_errors(p_queue, v_done);
  end if;
  return query select unnest(v_done);
end
$$;

create or replace function holdfast.delete_messages(p_queue text, p_receipts text[], p_strict boolean default true)
returns setof bigint
language plpgsql set search_path = ''
as $$
declare
  v_done bigint[];
  v_again boolean;
begin
  execute format(
    'with gone as (delete from %s m where %s returning m.msg_id, m.read_ct)
     select coalesce(array_agg(msg_id order by msg_id), ''{}''), bool_or(read_ct > 1) from gone',
    (holdfast.check_queue(p_queue)).p_messages, holdfast.receipt_condition())
    into v_done, v_again using holdfast.receipt_ids(p_receipts), p_receipts;
  perform holdfast.refuse_stale(p_queue, p_receipts, v_done, p_strict);
  if v_again then
    perform holdfast.forget_message_errors(p_queue, v_done);
  end if;
  return query select unnest(v_done);
end
$$;

-- Keep messages invisible for p_vt from now; zero gives them back. The receipts stay good.
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
    (holdfast.check_queue(p_queue)).p_messages, holdfast.receipt_condition())
    into v_done using holdfast.receipt_ids(p_receipts), p_receipts, holdfast.now() + p_vt;
  perform holdfast.refuse_stale(p_queue, p_receipts, v_done, p_strict);
  return query select unnest(v_done);
end
$$;

-- Messages that failed rest as the policy says, and keep the error. Those whose receipts are stale are left out.
create or replace function holdfast.retry_messages(p_queue text, p_receipts text[], p_error text default null)
returns table (msg_id bigint, vt timestamptz)
language plpgsql set search_path = ''
as $$
#variable_conflict use_column
declare
  v_policy holdfast.message_policies := holdfast.message_policy(p_queue);
  v_moved jsonb;
begin
  execute format(
    'with moved as (
       update %s m
          set vt = $3 + least($4, $5 * power(2, least(greatest(m.read_ct, 1), 40) - 1)) * (0.9 + 0.2 * random())
        where %s returning m.msg_id, m.vt, m.enqueued_at, m.read_ct)
     select coalesce(jsonb_agg(to_jsonb(moved) order by msg_id), ''[]'') from moved',
    (holdfast.check_queue(p_queue)).p_messages, holdfast.receipt_condition())
    into v_moved using holdfast.receipt_ids(p_receipts), p_receipts, holdfast.now(), v_policy.backoff_cap, v_policy.backoff;
  perform holdfast.keep_message_errors(p_queue, v_moved, p_error);
  return query select m.msg_id, m.vt from jsonb_to_recordset(v_moved) m (msg_id bigint, vt timestamptz) order by 1;
end
$$;

-- The receipts of reads that were the last ones allowed.
create or replace function holdfast.spent_receipts(p_receipts text[], p_max_reads integer) returns text[]
language plpgsql immutable set search_path = ''
as $$
begin
  perform holdfast.receipt_ids(p_receipts);  -- complains about what is no receipt
  return array(select r from unnest(p_receipts) r where split_part(r, '.', 2)::integer >= p_max_reads);
end
$$;

-- A failed attempt: the message is retried, or buried with its error when it was read often enough.
create or replace function holdfast.fail_messages(
  p_queue text, p_receipts text[], p_error text default null, p_strict boolean default true
) returns table (msg_id bigint, outcome text, vt timestamptz)
language plpgsql set search_path = ''
as $$
#variable_conflict use_column
declare
  v_max_reads integer := (holdfast.message_policy(p_queue)).max_reads;
  v_spent text[] := holdfast.spent_receipts(p_receipts, v_max_reads);
  v_dead bigint[] := array(select holdfast.bury_messages(p_queue, v_spent, p_error));
  v_resting bigint[];
  v_until timestamptz[];
begin
  select coalesce(array_agg(r.msg_id), '{}'), array_agg(r.vt) into v_resting, v_until
    from holdfast.retry_messages(p_queue, array(select r from unnest(p_receipts) r where r <> all (v_spent)), p_error) r;
  perform holdfast.refuse_stale(p_queue, p_receipts, v_dead || v_resting, p_strict);
  return query
  select r.id, 'retry', r.at from unnest(v_resting, v_until) r (id, at)
  union all
  select d, 'dead', null from unnest(v_dead) d
  order by 1;
end
$$;

call holdfast.allow('holdfast_worker', 'message_receipt', 'receipt_ids', 'refuse_stale', 'receipt_condition',
  'read_messages', 'take_messages', 'archive_messages', 'delete_messages', 'set_message_vt', 'spent_receipts', 'retry_messages', 'fail_messages');
call holdfast.allow('service_role', 'message_receipt', 'receipt_ids', 'refuse_stale', 'receipt_condition',
  'read_messages', 'take_messages', 'archive_messages', 'delete_messages', 'set_message_vt', 'spent_receipts', 'retry_messages', 'fail_messages');
