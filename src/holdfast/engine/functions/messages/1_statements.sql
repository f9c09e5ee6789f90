-- holdfast: unless-extension pgmq
--
-- The hot statements, each written once. Planning such a statement costs as much as a tenth of running it for a hundred
-- messages, and PL/pgSQL keeps the plan of a static statement only. So each queue gets one small function per kind,
-- called _<kind>:_<name>, that holds nothing but the statement; a table without them (made by other hands) is served by
-- the same text, planned at every call. The plan is a generic one that walks the primary key: the estimates of a
-- table that is empty one minute and full the next are not worth much.

-- How a statement finds again the rows that it has just locked: by their place, which needs no index, except in a
-- partitioned table, where places repeat. A row that moved between snapshot and lock is left for the next read. The array
-- is computed once, so no more rows are locked than asked for.
create or replace function pgmq._statement(p_kind text, p_table regclass) returns text
language plpgsql stable set search_path = ''
as $$
declare
  v_row text := case when pg_get_partkeydef(p_table) is null then 'ctid' else 'msg_id' end;
begin
  return format(case p_kind
    when 'send' then  -- vt, messages, headers; unnest keeps the order, and ids are drawn and returned in it
      'insert into %1$s (vt, message, headers) select $1, unnest($2), unnest($3) returning msg_id'
    when 'read' then  -- from, now, limit, seconds
      'with taken as (
         update %1$s set vt = $2 + make_interval(secs => $4), read_ct = read_ct + 1, last_read_at = $2
          where %2$s = any (array(
            select %2$s from %1$s where msg_id >= $1 and vt <= $2 order by msg_id limit $3 for update skip locked))
         returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       select * from taken order by msg_id'
    when 'pop' then  -- from, now, limit
      'with gone as (
         delete from %1$s where %2$s = any (array(
            select %2$s from %1$s where msg_id >= $1 and vt <= $2 order by msg_id limit $3 for update skip locked))
         returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       select * from gone order by msg_id'
    when 'archive' then  -- ids
      'with gone as (
         delete from %1$s where msg_id = any ($1)
         returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       insert into %3$s (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       select * from gone order by msg_id returning msg_id'
    when 'delete' then  -- ids
      'with gone as (delete from %1$s where msg_id = any ($1) returning msg_id) select msg_id from gone order by msg_id'
    end, p_table, v_row,
    (select format('pgmq.%I', 'a_' || substr(relname, 3)) from pg_catalog.pg_class where oid = p_table));
end
$$;

create or replace function pgmq._statement_arguments(p_kind text) returns text
language sql immutable set search_path = ''
as $$
  select case p_kind
    when 'send' then 'timestamp with time zone,jsonb[],jsonb[]'
    when 'read' then 'bigint,timestamp with time zone,integer,double precision'
    when 'pop' then 'bigint,timestamp with time zone,integer'
    else 'bigint[]' end
$$;

-- Make the functions of a queue, or bring them up to date.
create or replace function pgmq._make_statements(p_queue text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_table regclass := pgmq._table(p_queue, 'q');
  v_owner text := (select pg_get_userbyid(relowner) from pg_catalog.pg_class where oid = v_table);
  v_kind text;
  v_signature text;
begin
  foreach v_kind in array array['send', 'read', 'pop', 'archive', 'delete'] loop
    v_signature := pgmq._signature(v_kind, p_queue);
    execute format(
      'create or replace function %s returns setof %s language plpgsql set plan_cache_mode = force_generic_plan %s as %L',
      v_signature, case when v_kind in ('read', 'pop') then 'pgmq.message_record' else 'bigint' end,
      case when v_kind <> 'send' then
        'set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off' end,
      format('begin return query %s; end', pgmq._statement(v_kind, v_table)));
    execute format('alter function %s owner to %I', v_signature, v_owner);
    execute format('grant execute on function %s to public', v_signature);
  end loop;
end
$$;

create or replace function pgmq._drop_statements(p_queue text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_kind text;
begin
  foreach v_kind in array array['send', 'read', 'pop', 'archive', 'delete'] loop
    execute format('drop function if exists %s', pgmq._signature(v_kind, p_queue));
  end loop;
end
$$;

create or replace function pgmq._signature(p_kind text, p_queue text) returns text
language plpgsql stable
as $$
begin
  return format('pgmq.%I(%s)', pgmq.format_table_name(p_queue, '_' || p_kind || ':'), pgmq._statement_arguments(p_kind));
end
$$;

-- What to execute for a kind of statement on a queue; the arguments are those of the statement.
create or replace function pgmq._call(p_kind text, p_queue text) returns text
language plpgsql stable
as $$
declare
  v_name text := format('pgmq.%I', pgmq.format_table_name(p_queue, '_' || p_kind || ':'));
begin
  if to_regproc(v_name) is null then
    return pgmq._statement(p_kind, pgmq._table(p_queue, 'q'));
  end if;
  return 'select * from ' || v_name || case p_kind
    when 'send' then '($1, $2, $3)' when 'read' then '($1, $2, $3, $4)' when 'pop' then '($1, $2, $3)' else '($1)' end;
end
$$;
