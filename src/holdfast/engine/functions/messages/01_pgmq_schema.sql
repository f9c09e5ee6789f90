-- holdfast: unless-extension pgmq
--
-- Schema pgmq: the types and tables of the pgmq contract. Every statement here can run any number of times.
-- A pgmq that was installed as plain SQL (no extension) is taken over: its tables and types are the same. Its functions
-- whose default arguments would make our overloads ambiguous are dropped.

do $$
begin
  if to_regnamespace('pgmq') is null then
    create schema pgmq;
  end if;
  if to_regtype('pgmq.message_record') is null then
    create type pgmq.message_record as (
      msg_id bigint,
      read_ct integer,
      enqueued_at timestamptz,
      last_read_at timestamptz,
      vt timestamptz,
      message jsonb,
      headers jsonb
    );
  end if;
  if to_regtype('pgmq.queue_record') is null then
    create type pgmq.queue_record as (
      queue_name varchar,
      is_partitioned boolean,
      is_unlogged boolean,
      created_at timestamptz
    );
  end if;
  if to_regtype('pgmq.metrics_result') is null then
    create type pgmq.metrics_result as (
      queue_name text,
      queue_length bigint,
      newest_msg_age_sec integer,
      oldest_msg_age_sec integer,
      total_messages bigint,
      scrape_time timestamptz,
      queue_visible_length bigint,
      default_partition_length bigint
    );
  end if;
end
$$;

do $$
declare
  v_columns text;
  v_function regprocedure;
begin
  select string_agg(attname, ',' order by attnum) into v_columns
    from pg_catalog.pg_attribute
   where attrelid = 'pgmq.message_record'::regclass and attnum > 0 and not attisdropped;
  if v_columns <> 'msg_id,read_ct,enqueued_at,last_read_at,vt,message,headers' then
    raise exception using
      errcode = 'HF003',
      message = format('Schema pgmq contains an older version of pgmq: its message_record is (%s).', v_columns),
      hint = 'Upgrade it to pgmq 1.10 or later first, or rename the schema.';
  end if;
  for v_function in
    select p.oid::regprocedure
      from pg_catalog.pg_proc p
     where p.pronamespace = 'pgmq'::regnamespace
       and p.proname in ('read', 'pop', 'create_partitioned')
       and p.oid::regprocedure <> coalesce(to_regprocedure('pgmq.create_partitioned(text,text,text,integer)'), 0)
       and (p.pronargdefaults > 0)
  loop
    execute format('drop function %s', v_function);
  end loop;
end
$$;

create table if not exists pgmq.meta (
  queue_name varchar unique not null,
  is_partitioned boolean not null,
  is_unlogged boolean not null,
  created_at timestamptz not null default now()
);

create unlogged table if not exists pgmq.notify_insert_throttle (
  queue_name varchar unique not null
    constraint notify_insert_throttle_meta_queue_name_fk references pgmq.meta (queue_name) on delete cascade,
  throttle_interval_ms integer not null default 0,
  last_notified_at timestamptz not null default to_timestamp(0)
);

create table if not exists pgmq.topic_bindings (
  pattern text not null,
  queue_name text not null
    constraint topic_bindings_meta_queue_name_fk references pgmq.meta (queue_name) on delete cascade,
  bound_at timestamptz not null default now(),
  compiled_regex text generated always as (
    '^' || replace(replace(replace(pattern, '.', '\.'), '*', '[^.]+'), '#', '.*') || '$'
  ) stored,
  constraint topic_bindings_unique_pattern_queue unique (pattern, queue_name)
);

grant usage on schema pgmq to pg_monitor;
grant select on all tables in schema pgmq to pg_monitor;
grant select on all sequences in schema pgmq to pg_monitor;
alter default privileges in schema pgmq grant select on tables to pg_monitor;
alter default privileges in schema pgmq grant select on sequences to pg_monitor;
