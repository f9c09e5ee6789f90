-- Which data outside the schema belongs to owners. Systems register their tables and queues when they are installed.

-- Register a table whose rows belong to owners: erasing an owner deletes the rows whose column has the owner's id.
-- Register tables with references before those that they refer to. The caller must own the table and have the rights of
-- the owner of this schema, as whoever installs Holdfast has: triggers of the table run with these rights.
create or replace procedure holdfast.register_owner_table(p_table regclass, p_column text default 'user_id')
language plpgsql set search_path = '' as $$
declare
  v_table record;
  v_schema_owner name := (select pg_catalog.pg_get_userbyid(n.nspowner) from pg_catalog.pg_namespace n
    where n.nspname = 'holdfast');
begin
  if not pg_catalog.pg_has_role(current_user, v_schema_owner, 'usage') then
    perform holdfast.raise_error('HF005', format('The role %s may not register tables of owners.', current_user),
      'table', format('Register the table as the role that installs Holdfast, or run: grant %I to %I.', v_schema_owner,
        current_user));
  end if;
  select n.nspname, c.relname into v_table from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attname = p_column and a.attnum > 0
      and not a.attisdropped
  where c.oid = p_table and c.relkind in ('r', 'p');
  if not found then
    perform holdfast.raise_error('HF004', format('%s is not a table with a column %s.', p_table, p_column), 'column',
      'Name the column that has the id of the owner.');
  end if;
  execute format('grant usage on schema %I to %I', v_table.nspname, v_schema_owner);
  execute format('grant select, delete on %s to %I', p_table, v_schema_owner);
  execute format('drop policy if exists erasure on %s', p_table);
  execute format('create policy erasure on %s to %I using (true)', p_table, v_schema_owner);
  insert into holdfast.owner_tables (relation, owner_column)
  values (format('%I.%I', v_table.nspname, v_table.relname), p_column)
  on conflict (relation) do update set owner_column = excluded.owner_column;
end $$;

-- Register a message queue whose messages have the id of their owner in a field. Erasing an owner deletes them, also
-- from the archive and from the dead letters.
create or replace procedure holdfast.register_owner_queue(p_queue text, p_field text)
language plpgsql set search_path = '' as $$
begin
  if not holdfast.message_queue_exists(p_queue) then
    perform holdfast.raise_error('HF002', format('Message queue %s does not exist.', quote_nullable(p_queue)), 'queue');
  end if;
  insert into holdfast.owner_queues (queue_name, owner_field) values (lower(p_queue),
    holdfast.check_name(p_field, 'field'))
  on conflict (queue_name) do update set owner_field = excluded.owner_field;
end $$;

-- Delete up to p_limit rows of an owner from a registered table, and return their number. A table that was dropped has
-- none, and so has a table whose column cannot hold the id.
create or replace function holdfast.delete_owner_rows(p_relation text, p_column text, p_owner text, p_limit integer)
  returns integer
language plpgsql set search_path = '' as $$
declare
  v_type text := (select pg_catalog.format_type(a.atttypid, a.atttypmod) from pg_catalog.pg_attribute a
    where a.attrelid = to_regclass(p_relation) and a.attname = p_column and not a.attisdropped);
  v_count integer;
begin
  if v_type is null then
    return 0;
  end if;
  begin
    execute format('select %L::%s', p_owner, v_type);
  exception when data_exception then
    return 0;
  end;
  execute format('delete from %1$s r where (r.tableoid, r.ctid) in (
    select o.tableoid, o.ctid from %1$s o where o.%2$I = $1::%3$s limit $2)', p_relation, p_column, v_type)
    using p_owner, p_limit;
  get diagnostics v_count = row_count;
  return v_count;
end $$;

-- Delete up to p_limit messages of an owner from a registered queue, its archive and its dead letters. Return their
-- number, and until when readers may still work on some of them.
create or replace function holdfast.delete_owner_messages(p_queue text, p_field text, p_owner text, p_limit integer,
  out deleted integer, out held_until timestamptz)
language plpgsql set search_path = '' as $$
declare
  v_table text;
  v_ids bigint[];
  v_held timestamptz;
  v_dead text := (select lower(p.dead_letter_queue) from holdfast.message_policies p where p.queue_name = p_queue);
begin
  deleted := 0;
  foreach v_table in array array['q_' || p_queue, 'a_' || p_queue, 'q_' || v_dead, 'a_' || v_dead] loop
    continue when v_table is null or to_regclass(format('pgmq.%I', v_table)) is null;
    -- The message of a dead letter is the message itself. A reader holds a message until its `vt`.
    execute format('with gone as (
        delete from pgmq.%1$I m where (m.tableoid, m.ctid) in (
          select o.tableoid, o.ctid from pgmq.%1$I o where o.message ->> $1 = $2 limit $3)
        returning m.msg_id, case when m.read_ct > 0 then m.vt end as held_until)
      select array_agg(g.msg_id), max(g.held_until) from gone g', v_table)
    into v_ids, v_held using p_field, p_owner, p_limit - deleted;
    perform holdfast.delete_message_errors(substr(v_table, 3), v_ids);
    deleted := deleted + coalesce(cardinality(v_ids), 0);
    if left(v_table, 2) = 'q_' then
      held_until := greatest(held_until, v_held);
    end if;
  end loop;
end $$;
