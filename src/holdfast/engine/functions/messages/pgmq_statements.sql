-- holdfast: unless-extension pgmq
--
-- The hot statements on a queue table, each written once. Planning such a statement costs a tenth of running it for a
-- hundred messages, and PL/pgSQL caches the plan of a static statement only. So each queue has one small function per
-- statement, called _<statement>:_<queue>, that contains only the statement. A table without these functions (created
-- by somebody else) uses the same text, planned at every call. The plan is a generic one that walks the primary key:
-- the statistics of a table that is empty one minute and full the next are not reliable.

-- Return the text of a statement. It updates the rows that it has locked by ctid, which needs no index; in a
-- partitioned table, where ctids repeat, by msg_id. A row that moved between snapshot and lock is left for the next
-- read. The array is computed once, so no more rows are locked than requested.
create or replace function pgmq._build_statement_text(p_statement text, p_table regclass) returns text
language plpgsql stable set search_path = ''
as $$
declare
  v_row text := case when pg_get_partkeydef(p_table) is null then 'ctid' else 'msg_id' end;
begin
  return format(case p_statement
    when 'send' then  -- vt, messages, headers; unnest keeps the order, and ids are assigned and returned in it
      'insert into %1$s (vt, message, headers) select $1, unnest($2), unnest($3) returning msg_id'
    when 'read' then  -- from, now, limit, seconds
      'with taken as (
         update %1$s set vt = $2 + make_interval(secs => $4), read_ct = read_ct + 1, last_read_at = $2
          where %2$s = any (array(
            select %2$s from %1$s where msg_id >= $1 and vt <= $2 order by msg_id limit $3 for update skip locked))
         returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       select * from taken order by msg_id'
    when 'pop' then  -- from, now, limit
      'with deleted as (
         delete from %1$s where %2$s = any (array(
            select %2$s from %1$s where msg_id >= $1 and vt <= $2 order by msg_id limit $3 for update skip locked))
         returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       select * from deleted order by msg_id'
    when 'archive' then  -- ids
      'with deleted as (
         delete from %1$s where msg_id = any ($1)
         returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       insert into %3$s (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
       select * from deleted order by msg_id returning msg_id'
    when 'delete' then  -- ids
      'with deleted as (delete from %1$s where msg_id = any ($1) returning msg_id)
       select msg_id from deleted order by msg_id'
    end, p_table, v_row,
    (select format('pgmq.%I', 'a_' || substr(relname, 3)) from pg_catalog.pg_class where oid = p_table));
end
$$;

-- Return the argument types of a statement as SQL text.
create or replace function pgmq._get_statement_argument_types(p_statement text) returns text
language sql immutable set search_path = ''
as $$
  select case p_statement
    when 'send' then 'timestamp with time zone,jsonb[],jsonb[]'
    when 'read' then 'bigint,timestamp with time zone,integer,double precision'
    when 'pop' then 'bigint,timestamp with time zone,integer'
    else 'bigint[]' end
$$;

-- Create or replace the statement functions of a queue.
create or replace function pgmq._create_statement_functions(p_queue text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_table regclass := pgmq._get_queue_table(p_queue, 'q');
  v_owner text := (select pg_get_userbyid(relowner) from pg_catalog.pg_class where oid = v_table);
  v_statement text;
  v_signature text;
begin
  foreach v_statement in array array['send', 'read', 'pop', 'archive', 'delete'] loop
    v_signature := pgmq._build_statement_signature(v_statement, p_queue);
    execute format(
      'create or replace function %s returns setof %s
         language plpgsql set plan_cache_mode = force_generic_plan %s as %L',
      v_signature, case when v_statement in ('read', 'pop') then 'pgmq.message_record' else 'bigint' end,
      case when v_statement <> 'send' then
        'set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off' end,
      format('begin return query %s; end', pgmq._build_statement_text(v_statement, v_table)));
    execute format('alter function %s owner to %I', v_signature, v_owner);
    execute format('grant execute on function %s to public', v_signature);
  end loop;
end
$$;

-- Drop the statement functions of a queue.
create or replace function pgmq._drop_statement_functions(p_queue text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_statement text;
begin
  foreach v_statement in array array['send', 'read', 'pop', 'archive', 'delete'] loop
    execute format('drop function if exists %s', pgmq._build_statement_signature(v_statement, p_queue));
  end loop;
end
$$;

-- Return the quoted name and argument types of a statement function.
create or replace function pgmq._build_statement_signature(p_statement text, p_queue text) returns text
language plpgsql stable
as $$
begin
  return format('pgmq.%I(%s)', pgmq.format_table_name(p_queue, '_' || p_statement || ':'),
    pgmq._get_statement_argument_types(p_statement));
end
$$;

-- Return the SQL that runs a statement on a queue, with the arguments of the statement as parameters.
create or replace function pgmq._build_statement_call(p_statement text, p_queue text) returns text
language plpgsql stable
as $$
declare
  v_name text := format('pgmq.%I', pgmq.format_table_name(p_queue, '_' || p_statement || ':'));
begin
  if to_regproc(v_name) is null then
    return pgmq._build_statement_text(p_statement, pgmq._get_queue_table(p_queue, 'q'));
  end if;
  return 'select * from ' || v_name || case p_statement
    when 'send' then '($1, $2, $3)' when 'read' then '($1, $2, $3, $4)' when 'pop' then '($1, $2, $3)' else '($1)' end;
end
$$;
