-- holdfast: unless-extension pgmq
--
-- Grouped (FIFO) reads. The group of a message is headers ->> 'x-pgmq-group'; messages without one form a group of
-- their own. A group is read only from its oldest message on: while that message, the head, is in flight or locked, no
-- message of the group is read.
--
-- The protocol. Heads are found in a prefix of the queue in id order: the oldest message of a group in a prefix is the
-- oldest in the whole queue. The prefix grows only while it has too few readable groups, so the cost depends on the
-- number of requested messages, not on the length of the queue. With the index of create_fifo_index the search jumps
-- from group to group instead. The head is locked first and is the lock of its group. There are no advisory locks, so
-- equal group names in two queues do not conflict, and no reader waits.

-- Return the id at which the messages of a queue start.
create or replace function pgmq._get_read_floor(p_queue text) returns bigint
language plpgsql
as $$
declare
  v_floor regclass := pgmq._find_read_hint_sequence(p_queue, 'f');
  v_full regclass := pgmq._find_read_hint_sequence(p_queue, 'z');
begin
  if v_floor is null or v_full is null or pgmq._get_now_microseconds() >= coalesce(pg_sequence_last_value(v_full), 0)
    or coalesce(pg_sequence_last_value(v_floor), 0)
      > coalesce(pg_sequence_last_value(pgmq._get_id_sequence(pgmq._get_queue_table(p_queue, 'q'))), 0)
  then
    return -9223372036854775808;
  end if;
  return coalesce(pg_sequence_last_value(v_floor), 0);
end
$$;

-- Return how many of the first p_window messages exist, and the visible heads among them.
create or replace function pgmq._find_group_heads_in_prefix(
  p_queue text, p_now timestamptz, p_window bigint, out p_count bigint, out p_heads bigint[]
)
language plpgsql
as $$
begin
  execute format(
    'with prefix as materialized (
       select msg_id, vt, headers ->> ''x-pgmq-group'' as grp from %s where msg_id >= $1 order by msg_id limit $2
     ), heads as (
       select distinct on (grp) msg_id, vt from prefix order by grp, msg_id
     )
     select (select count(*) from prefix), (select array_agg(msg_id order by msg_id) from heads where vt <= $3)',
    format('pgmq.%I', pgmq.format_table_name(p_queue, 'q')))
    into p_count, p_heads using pgmq._get_read_floor(p_queue), p_window, p_now;
end
$$;

-- Return the visible heads of the whole queue, group by group along the index.
create or replace function pgmq._find_group_heads_by_index(p_queue text, p_now timestamptz) returns bigint[]
language plpgsql
as $$
declare
  v_heads bigint[];
begin
  execute format(
    'with recursive steps as (
       (select headers ->> ''x-pgmq-group'' as grp, msg_id, vt from %1$s
         where headers ->> ''x-pgmq-group'' is not null order by headers ->> ''x-pgmq-group'', msg_id limit 1)
       union all
       select following.* from steps, lateral (
         select t.headers ->> ''x-pgmq-group'', t.msg_id, t.vt from %1$s t
          where t.headers ->> ''x-pgmq-group'' > steps.grp
          order by t.headers ->> ''x-pgmq-group'', t.msg_id limit 1) following
     ), heads as (
       select msg_id, vt from steps
       union all
       (select msg_id, vt from %1$s where headers ->> ''x-pgmq-group'' is null order by msg_id limit 1)
     )
     select array_agg(msg_id order by msg_id) from heads where vt <= $1',
    format('pgmq.%I', pgmq.format_table_name(p_queue, 'q'))) into v_heads using p_now;
  return v_heads;
end
$$;

-- Lock the heads of up to p_max_groups readable groups, oldest first. Null locks all.
create or replace function pgmq._lock_group_heads(
  p_queue text, p_now timestamptz, p_max_groups integer) returns bigint[]
language plpgsql
as $$
declare
  v_index regclass := to_regclass(format('pgmq.%I', pgmq.format_table_name(p_queue, 'q') || '_group_idx'));
  v_window bigint := greatest(1000, 8::bigint * p_max_groups);
  v_complete boolean := false;
  v_count bigint;
  v_heads bigint[];
  v_locked bigint[];
begin
  loop
    if v_window > 10000 and v_index is not null then
      v_heads := pgmq._find_group_heads_by_index(p_queue, p_now);
      v_complete := true;
    else
      select p_count, p_heads into v_count, v_heads from pgmq._find_group_heads_in_prefix(p_queue, p_now, v_window);
      v_complete := v_count < v_window;
    end if;
    if v_complete or cardinality(v_heads) >= p_max_groups then
      execute format(
        'select array_agg(msg_id order by msg_id) from (
           select msg_id from pgmq.%I where msg_id = any ($1) and vt <= $2
            order by msg_id limit $3 for update skip locked) locked',
        pgmq.format_table_name(p_queue, 'q')) into v_locked using v_heads, p_now, p_max_groups;
    end if;
    if v_complete or cardinality(v_locked) >= p_max_groups then
      return coalesce(v_locked, '{}');
    end if;
    v_window := v_window * 8;
  end loop;
end
$$;

-- Select visible messages of the groups with these heads, at most p_qty of each. p_by 'group' takes all messages of
-- one group before the next; 'rank' takes one message of every group in turn.
create or replace function pgmq._select_group_messages(p_queue text, p_now timestamptz, p_qty integer,
  p_heads bigint[], p_by text)
returns bigint[]
language plpgsql
as $$
declare
  v_table text := format('pgmq.%I', pgmq.format_table_name(p_queue, 'q'));
  v_groups text[];
  v_order text := case p_by when 'group' then 'place, msg_id' else 'rank, place' end;
  v_ids bigint[];
begin
  execute format('select array_agg(headers ->> ''x-pgmq-group'' order by msg_id) from %s where msg_id = any ($1)',
    v_table)
    into v_groups using p_heads;
  execute format(
    'with members as (
       select msg_id, place, row_number() over (partition by place order by msg_id) as rank
         from (%s) candidates
     )
     select array_agg(msg_id order by %s) from (
       select * from members where $2 is null or rank <= $2 order by %s limit $2) selected',
    pgmq._build_group_members_query(v_table, p_queue), v_order, v_order)
    into v_ids using p_now, p_qty, v_groups, p_heads[1];
  return v_ids;
end
$$;

-- Return the query for the messages of groups: without the index one walk for all groups, with it one per group.
create or replace function pgmq._build_group_members_query(p_table text, p_queue text) returns text
language plpgsql stable
as $$
begin
  if to_regclass(format('pgmq.%I', pgmq.format_table_name(p_queue, 'q') || '_group_idx')) is null then
    return format(
      'select t.msg_id, array_position($3, t.headers ->> ''x-pgmq-group'') as place from %s t
        where t.msg_id >= $4 and t.vt <= $1 and array_position($3, t.headers ->> ''x-pgmq-group'') is not null',
          p_table);
  end if;
  return format(
    'select m.msg_id, g.place from unnest($3) with ordinality g (grp, place), lateral (
       (select msg_id from %1$s where g.grp is not null and headers ->> ''x-pgmq-group'' = g.grp and vt <= $1
         order by headers ->> ''x-pgmq-group'', msg_id limit $2)
       union all
       (select msg_id from %1$s where g.grp is null and headers ->> ''x-pgmq-group'' is null and vt <= $1
         order by msg_id limit $2)) m', p_table);
end
$$;

-- Read messages by id, in the order of the array.
create or replace function pgmq._read_messages_by_ids(p_queue text, p_ids bigint[], p_vt integer, p_now timestamptz)
returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query execute format(
    'with read as (
       update %1$s set vt = $2 + make_interval(secs => $3), read_ct = read_ct + 1, last_read_at = $2
        where msg_id = any (array(
          select msg_id from %1$s where msg_id = any ($1) and vt <= $2 order by msg_id for update skip locked))
       returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers
     )
     select * from read order by array_position($1, msg_id)',
    format('pgmq.%I', pgmq.format_table_name(p_queue, 'q'))) using p_ids, p_now, p_vt;
end
$$;

-- Read messages of several groups. p_by chooses the order: group, rank or head.
create or replace function pgmq._read_message_groups(p_queue text, p_vt integer, p_qty integer, p_by text,
  p_now timestamptz)
returns setof pgmq.message_record
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_heads bigint[];
  v_ids bigint[];
begin
  if p_qty < 0 then
    raise exception 'LIMIT must not be negative' using errcode = '2201W';
  end if;
  perform pgmq._get_queue_table(p_queue, 'q');
  v_heads := pgmq._lock_group_heads(p_queue, p_now, p_qty);
  if p_by = 'head' or (p_by = 'rank' and cardinality(v_heads) >= p_qty) then
    v_ids := v_heads;
  elsif cardinality(v_heads) > 0 then
    v_ids := pgmq._select_group_messages(p_queue, p_now, p_qty, v_heads, p_by);
  end if;
  if p_by = 'group' then
    v_ids := array(select unnest(v_ids) order by 1);
  end if;
  return query select * from pgmq._read_messages_by_ids(p_queue, v_ids, p_vt, p_now);
end
$$;

create or replace function pgmq.read_grouped(queue_name text, vt integer, qty integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_message_groups(queue_name, vt, qty, 'group',
  clock_timestamp()); end $$;

create or replace function pgmq.read_grouped_rr(queue_name text, vt integer, qty integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_message_groups(queue_name, vt, qty, 'rank',
  clock_timestamp()); end $$;

create or replace function pgmq.read_grouped_head(queue_name text, vt integer, qty integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_message_groups(queue_name, vt, qty, 'head',
  clock_timestamp()); end $$;

create or replace function pgmq.create_fifo_index(queue_name text) returns void
language plpgsql set search_path = ''
as $$
declare
  v_name text := pgmq.format_table_name(queue_name, 'q');
begin
  perform pgmq.acquire_queue_lock(queue_name);
  if to_regclass(format('pgmq.%I', v_name || '_fifo_idx')) is null then
    execute format('create index %I on pgmq.%I using gin (headers)', v_name || '_fifo_idx', v_name);
  end if;
  -- The index of the contract does not find the oldest message of a group; this one does.
  if to_regclass(format('pgmq.%I', v_name || '_group_idx')) is null then
    execute format('create index %I on pgmq.%I ((headers ->> ''x-pgmq-group''), msg_id)', v_name || '_group_idx',
      v_name);
  end if;
end
$$;

create or replace function pgmq.create_fifo_indexes_all() returns void
language plpgsql set search_path = ''
as $$
begin
  perform pgmq.create_fifo_index(m.queue_name) from pgmq.meta m;
end
$$;
