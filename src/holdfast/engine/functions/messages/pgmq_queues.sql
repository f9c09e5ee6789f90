-- holdfast: unless-extension pgmq
--
-- Create, list and drop queues. A queue is two tables, q_<name> and a_<name>, a row in pgmq.meta, and three sequences
-- with the read hints (see pgmq_read.sql). Table names are lower case, pgmq.meta keeps the spelling of the caller; two
-- spellings that differ in case are one queue.

create or replace function pgmq.validate_queue_name(queue_name text) returns void
language plpgsql immutable set search_path = ''
as $$
begin
  if char_length(queue_name) > 47 then
    raise exception 'queue name is too long, maximum length is 47 characters';
  end if;
  -- PostgreSQL truncates longer identifiers by bytes, so two long names that differ only at the end would share tables.
  if greatest(octet_length(queue_name), octet_length(lower(queue_name))) > 47 then
    raise exception 'queue name is too long, maximum length is 47 bytes'
      using hint = 'Characters outside ASCII count two to four bytes.';
  end if;
end
$$;

create or replace function pgmq.format_table_name(queue_name text, prefix text) returns text
language plpgsql immutable
as $$
begin
  if queue_name ~ '\$|;|--|''' then
    raise exception 'queue name contains invalid characters: $, ;, --, or \''';
  end if;
  return lower(prefix || '_' || queue_name);
end
$$;

create or replace function pgmq.acquire_queue_lock(queue_name text) returns void
language sql set search_path = ''
as $$
  select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgmq.queue:' || pg_catalog.lower(queue_name),
    0));
$$;

-- Return the table of a queue, or raise the error of the contract: 42P01 with the name in it, 22004 for a null name.
create or replace function pgmq._get_queue_table(p_queue text, p_prefix text) returns regclass
language plpgsql stable
as $$
begin
  return format('pgmq.%I', pgmq.format_table_name(p_queue, p_prefix))::regclass;
end
$$;

-- Return whether the table exists. An index or a sequence of another queue with this name is an error.
create or replace function pgmq._table_exists(p_name text) returns boolean
language plpgsql stable set search_path = ''
as $$
declare
  v_relkind "char";
begin
  select relkind into v_relkind
    from pg_catalog.pg_class
   where relname = p_name and relnamespace = 'pgmq'::regnamespace;
  if v_relkind not in ('r', 'p') then
    raise exception 'the name pgmq.% is taken by another queue''s sequence or index', quote_ident(p_name)
      using errcode = '42P07', hint = 'Choose another queue name.';
  end if;
  return v_relkind is not null;
end
$$;

-- Create the sequences with the read hints of a queue.
create or replace function pgmq._create_read_hint_sequences(p_queue text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_table regclass := pgmq._get_queue_table(p_queue, 'q');
  v_unlogged boolean;
  v_owner text;
  v_name text;
begin
  select relpersistence = 'u', pg_get_userbyid(relowner) into v_unlogged, v_owner
    from pg_catalog.pg_class where oid = v_table;
  foreach v_name in array array['c', 'f', 'z'] loop
    v_name := pgmq.format_table_name(p_queue, v_name);
    if to_regclass(format('pgmq.%I', v_name)) is null then
      -- After a crash the hints of an unlogged queue must restart with its ids. (PostgreSQL 14 has no unlogged
      -- sequences, and there the ids of an unlogged table continue.) The hints are owned by column vt, so that msg_id
      -- has one sequence and all are dropped with the table.
      execute format('create %s sequence pgmq.%I as bigint minvalue 0 start 0',
        case when v_unlogged and current_setting('server_version_num')::integer >= 150000 then 'unlogged' end, v_name);
      execute format('alter sequence pgmq.%I owner to %I', v_name, v_owner);
      execute format('alter sequence pgmq.%I owned by %s.vt', v_name, v_table);
    end if;
  end loop;
end
$$;

-- Set owner, grant and row level security of a new table. The owner is the owner of the schema. The API roles of
-- Supabase have no access until somebody grants rights and creates policies; service_role and our workers have access.
create or replace function pgmq._secure_table(p_table regclass) returns void
language plpgsql set search_path = ''
as $$
declare
  v_owner text := (select pg_get_userbyid(nspowner) from pg_catalog.pg_namespace where nspname = 'pgmq');
begin
  if v_owner <> current_user and pg_has_role(current_user, v_owner, 'usage') then
    execute format('alter table %s owner to %I', p_table, v_owner);
  end if;
  execute format('grant select on %s to pg_monitor', p_table);
  perform pgmq._grant_table_to_workers(p_table);
  if exists (select from pg_catalog.pg_roles where rolname in ('anon', 'authenticated')) then
    execute format('alter table %s enable row level security', p_table);
  end if;
end
$$;

-- Grant a table to service_role and workers. Take no lock when nothing changes: upgrades call it for queues in use.
create or replace function pgmq._grant_table_to_workers(p_table regclass) returns void
language plpgsql set search_path = ''
as $$
declare
  v_owner text := (select pg_get_userbyid(relowner) from pg_catalog.pg_class where oid = p_table);
  v_role text;
begin
  for v_role in
    select rolname from pg_catalog.pg_roles where rolname in ('service_role', 'holdfast_worker') and rolname <> v_owner
  loop
    execute format('grant all on %s to %I', p_table, v_role);
    -- With row level security, grants alone show no rows, unless the role bypasses it.
    if not exists (select from pg_catalog.pg_policy where polrelid = p_table and polname = v_role) then
      execute format('create policy %1$I on %2$s to %1$I using (true) with check (true)', v_role, p_table);
    end if;
  end loop;
end
$$;

-- Grant the sequences of a queue table. Users may read the one with the ids, for metrics, and change none: sending
-- needs no right on it, and roles that see only part of the rows do not use the read hints.
create or replace function pgmq._grant_sequences(p_table regclass) returns void
language plpgsql set search_path = ''
as $$
declare
  v_sequence regclass;
  v_role text;
begin
  for v_sequence in
    select c.oid::regclass
      from pg_catalog.pg_depend d
      join pg_catalog.pg_class c on c.oid = d.objid and c.relkind = 'S'
     where d.refobjid = p_table and d.classid = 'pg_catalog.pg_class'::regclass
  loop
    execute format('grant select on sequence %s to pg_monitor', v_sequence);
    for v_role in
      select rolname from pg_catalog.pg_roles where rolname in ('service_role', 'holdfast_worker')
    loop
      execute format('grant usage, select, update on sequence %s to %I', v_sequence, v_role);
    end loop;
    for v_role in
      select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated')
    loop
      execute format('revoke all on sequence %s from %I', v_sequence, v_role);
      if v_sequence = pgmq._get_id_sequence(p_table) then
        execute format('grant select on sequence %s to %I', v_sequence, v_role);
      end if;
    end loop;
  end loop;
end
$$;

-- Create the archive table of a queue with its index.
create or replace function pgmq._create_archive_table(p_queue text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_name text := pgmq.format_table_name(p_queue, 'a');
begin
  if not pgmq._table_exists(v_name) then
    execute format('create table pgmq.%I (
      msg_id bigint primary key,
      read_ct integer not null default 0,
      enqueued_at timestamptz not null default now(),
      last_read_at timestamptz,
      archived_at timestamptz not null default now(),
      vt timestamptz not null,
      message jsonb,
      headers jsonb
    )', v_name);
    perform pgmq._secure_table(format('pgmq.%I', v_name)::regclass);
  end if;
  if to_regclass(format('pgmq.%I', 'archived_at_idx_' || p_queue)) is null then
    execute format('create index %I on pgmq.%I (archived_at)', 'archived_at_idx_' || p_queue, v_name);
  end if;
end
$$;

-- Create the tables, sequences and statement functions of a queue.
create or replace function pgmq._create_queue(p_queue text, p_unlogged boolean) returns void
language plpgsql set search_path = ''
as $$
declare
  v_name text := pgmq.format_table_name(p_queue, 'q');
begin
  perform pgmq.validate_queue_name(p_queue);
  perform pgmq.acquire_queue_lock(p_queue);
  if not pgmq._table_exists(v_name) then
    -- No index on vt, and free space on every page: a read is then a heap-only update, which writes no index.
    execute format('create %s table pgmq.%I (
      msg_id bigint primary key generated always as identity,
      read_ct integer not null default 0,
      enqueued_at timestamptz not null default now(),
      last_read_at timestamptz,
      vt timestamptz not null,
      message jsonb,
      headers jsonb
    ) with (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000)',
      case when p_unlogged then 'unlogged' end, v_name);
    perform pgmq._secure_table(format('pgmq.%I', v_name)::regclass);
  end if;
  perform pgmq._create_read_hint_sequences(p_queue);
  perform pgmq._grant_sequences(format('pgmq.%I', v_name)::regclass);
  perform pgmq._create_archive_table(p_queue);
  perform pgmq._create_statement_functions(p_queue);
  insert into pgmq.meta (queue_name, is_partitioned, is_unlogged)
  select p_queue, false, p_unlogged
   where not exists (select from pgmq.meta m where lower(m.queue_name) = lower(p_queue));
end
$$;

create or replace function pgmq.create_non_partitioned(queue_name text) returns void
language sql set search_path = ''
as $$ select pgmq._create_queue(queue_name, false) $$;

create or replace function pgmq.create(queue_name text) returns void
language sql set search_path = ''
as $$ select pgmq._create_queue(queue_name, false) $$;

create or replace function pgmq.create_unlogged(queue_name text) returns void
language sql set search_path = ''
as $$ select pgmq._create_queue(queue_name, true) $$;

-- The drop waits for readers of the queue for at most two seconds: whoever uses the queue waits behind it.
create or replace function pgmq.drop_queue(queue_name text) returns boolean
language plpgsql set search_path = '' set lock_timeout = '2s'
as $$
declare
  v_queue alias for $1;
  v_name text := pgmq.format_table_name(v_queue, 'q');
begin
  perform pgmq.acquire_queue_lock(v_queue);
  if not pgmq._table_exists(v_name) then
    raise notice 'pgmq queue "%" does not exist', v_queue;
    return false;
  end if;
  perform pgmq._delete_partman_config(v_queue);
  perform pgmq._drop_statement_functions(v_queue);
  execute format('drop table pgmq.%I', v_name);
  execute format('drop table if exists pgmq.%I', pgmq.format_table_name(v_queue, 'a'));
  delete from pgmq.meta m where lower(m.queue_name) = lower(v_queue);
  return true;
end
$$;

create or replace function pgmq.drop_queue(queue_name text, partitioned boolean) returns boolean
language plpgsql set search_path = ''
as $$
begin
  raise warning 'drop_queue(queue_name, partitioned) is deprecated, use drop_queue(queue_name)';
  perform pgmq.drop_queue(queue_name);
  return true;
end
$$;

create or replace function pgmq.purge_queue(queue_name text) returns bigint
language plpgsql set search_path = ''
as $$
declare
  v_table regclass := pgmq._get_queue_table(queue_name, 'q');
  v_count bigint;
begin
  -- Locked before counting, so that the result is the number of deleted messages. A truncate is fast, but it needs a
  -- lock that no reader shares; it does not wait for it, because everybody else would wait behind it.
  begin
    execute format('lock table %s in access exclusive mode nowait', v_table);
    execute format('select count(*) from %s', v_table) into v_count;
    execute format('truncate table %s', v_table);
  exception when lock_not_available then
    execute format('delete from %s', v_table);
    get diagnostics v_count = row_count;
  end;
  return v_count;
end
$$;

create or replace function pgmq.list_queues() returns setof pgmq.queue_record
language sql stable set search_path = ''
as $$ select m.queue_name, m.is_partitioned, m.is_unlogged, m.created_at from pgmq.meta m $$;

create or replace function pgmq.detach_archive(queue_name text) returns void
language plpgsql set search_path = ''
as $$
begin
  raise warning 'detach_archive is deprecated and does nothing: archives are not part of an extension';
end
$$;

create or replace function pgmq.metrics(queue_name text) returns pgmq.metrics_result
language plpgsql set search_path = ''
as $$
declare
  v_table regclass := pgmq._get_queue_table(queue_name, 'q');
  v_default regclass := to_regclass(format('pgmq.%I', pgmq.format_table_name(queue_name, 'q') || '_default'));
  v_result pgmq.metrics_result;
begin
  execute format(
    'select $1, count(*), extract(epoch from now() - max(enqueued_at))::integer,
            extract(epoch from now() - min(enqueued_at))::integer, 0::bigint, now(),
            count(*) filter (where vt <= now()), null::bigint
       from %s', v_table) into v_result using queue_name;
  v_result.total_messages := coalesce(pg_sequence_last_value(pgmq._get_id_sequence(v_table)), 0);
  if (select relkind = 'p' from pg_catalog.pg_class where oid = v_table) and v_default is not null then
    execute format('select count(*) from %s', v_default) into v_result.default_partition_length;
  end if;
  return v_result;
end
$$;

create or replace function pgmq.metrics_all() returns setof pgmq.metrics_result
language plpgsql set search_path = ''
as $$
declare
  v_queue text;
begin
  for v_queue in select m.queue_name from pgmq.meta m order by 1 loop
    return next pgmq.metrics(v_queue);
  end loop;
end
$$;

-- Return the sequence of msg_id. It is looked up in the catalog, because a queue called x_msg_id_seq can have the
-- usual name.
create or replace function pgmq._get_id_sequence(p_table regclass) returns regclass
language plpgsql stable
as $$ begin return pg_get_serial_sequence(p_table::text, 'msg_id')::regclass; end $$;
