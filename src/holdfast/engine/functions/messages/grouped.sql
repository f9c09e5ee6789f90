-- holdfast: unless-extension pgmq
--
-- Reading in groups (FIFO). The group of a message is headers ->> 'x-pgmq-group'; messages without one form a group of
-- their own. A group is served only from its oldest message on: while that one is in flight or locked, the group rests.
--
-- The protocol. The oldest message of each group is found by looking at the beginning of the queue in id order: what is
-- oldest in a prefix is oldest in the whole. The prefix grows only while it shows too few groups that can be served,
-- so the cost follows the number of messages asked for, not the length of the queue; with the index of
-- create_fifo_index the search then jumps from group to group instead. The oldest message is locked first and is the lock of
-- its group: no advisory locks, so equal names in two queues do not meet, and nobody waits.

-- Where the messages of a queue begin.
create or replace function pgmq._floor(p_queue text) returns bigint
language plpgsql
as $$
declare
  v_floor regclass := pgmq._hint(p_queue, 'f');
  v_full regclass := pgmq._hint(p_queue, 'z');
begin
  if v_floor is null or v_full is null or pgmq._microseconds() >= coalesce(pg_sequence_last_value(v_full), 0)
    or coalesce(pg_sequence_last_value(v_floor), 0)
      > coalesce(pg_sequence_last_value(pgmq._id_sequence(pgmq._table(p_queue, 'q'))), 0)
  then
    return -9223372036854775808;
  end if;
  return coalesce(pg_sequence_last_value(v_floor), 0);
end
$$;

-- Of the first p_window messages: how many there are, and the visible ones that are the oldest of their group.
create or replace function pgmq._prefix_heads(
  p_queue text, p_now timestamptz, p_window bigint, out p_seen bigint, out p_heads bigint[]
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
    into p_seen, p_heads using pgmq._floor(p_queue), p_window, p_now;
end
$$;

-- The same for the whole queue, group by group along the index.
create or replace function pgmq._indexed_heads(p_queue text, p_now timestamptz) returns bigint[]
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

-- Lock the oldest messages of up to p_wanted groups that can be served, oldest first. Null wants all.
create or replace function pgmq._lock_heads(p_queue text, p_now timestamptz, p_wanted integer) returns bigint[]
language plpgsql
as $$
declare
  v_index regclass := to_regclass(format('pgmq.%I', pgmq.format_table_name(p_queue, 'q') || '_group_idx'));
  v_window bigint := greatest(1000, 8::bigint * p_wanted);
  v_whole boolean := false;
  v_seen bigint;
  v_heads bigint[];
  v_locked bigint[];
begin
  loop
    if v_window > 10000 and v_index is not null then
      v_heads := pgmq._indexed_heads(p_queue, p_now);
      v_whole := true;
    else
      select p_seen, p_heads into v_seen, v_heads from pgmq._prefix_heads(p_queue, p_now, v_window);
      v_whole := v_seen < v_window;
    end if;
    if v_whole or cardinality(v_heads) >= p_wanted then
      execute format(
        'select array_agg(msg_id order by msg_id) from (
           select msg_id from pgmq.%I where msg_id = any ($1) and vt <= $2
            order by msg_id limit $3 for update skip locked) locked',
        pgmq.format_table_name(p_queue, 'q')) into v_locked using v_heads, p_now, p_wanted;
    end if;
    if v_whole or cardinality(v_locked) >= p_wanted then
      return coalesce(v_locked, '{}');
    end if;
    v_window := v_window * 8;
  end loop;
end
$$;

-- All visible messages of the groups whose oldest are p_heads, at most p_qty of each, with the place of the group and the
-- rank in it, in an order: 'group' empties one group after the other, 'rank' takes from all in turn.
create or replace function pgmq._fill(p_queue text, p_now timestamptz, p_qty integer, p_heads bigint[], p_by text)
returns bigint[]
language plpgsql
as $$
declare
  v_table text := format('pgmq.%I', pgmq.format_table_name(p_queue, 'q'));
  v_groups text[];
  v_order text := case p_by when 'group' then 'place, msg_id' else 'rank, place' end;
  v_ids bigint[];
begin
  execute format('select array_agg(headers ->> ''x-pgmq-group'' order by msg_id) from %s where msg_id = any ($1)', v_table)
    into v_groups using p_heads;
  execute format(
    'with members as (
       select msg_id, place, row_number() over (partition by place order by msg_id) as rank
         from (%s) found
     )
     select array_agg(msg_id order by %s) from (
       select * from members where $2 is null or rank <= $2 order by %s limit $2) wanted',
    pgmq._members_query(v_table, p_queue), v_order, v_order)
    into v_ids using p_now, p_qty, v_groups, p_heads[1];
  return v_ids;
end
$$;

-- Without the index one walk finds the members of all groups; with it, one short walk per group.
create or replace function pgmq._members_query(p_table text, p_queue text) returns text
language plpgsql stable
as $$
begin
  if to_regclass(format('pgmq.%I', pgmq.format_table_name(p_queue, 'q') || '_group_idx')) is null then
    return format(
      'select t.msg_id, array_position($3, t.headers ->> ''x-pgmq-group'') as place from %s t
        where t.msg_id >= $4 and t.vt <= $1 and array_position($3, t.headers ->> ''x-pgmq-group'') is not null', p_table);
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

-- Take these messages as read does, in the order of the array.
create or replace function pgmq._take_these(p_queue text, p_ids bigint[], p_vt integer, p_now timestamptz)
returns setof pgmq.message_record
language plpgsql
as $$
begin
  return query execute format(
    'with taken as (
       update %1$s set vt = $2 + make_interval(secs => $3), read_ct = read_ct + 1, last_read_at = $2
        where msg_id = any (array(
          select msg_id from %1$s where msg_id = any ($1) and vt <= $2 order by msg_id for update skip locked))
       returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers
     )
     select * from taken order by array_position($1, msg_id)',
    format('pgmq.%I', pgmq.format_table_name(p_queue, 'q'))) using p_ids, p_now, p_vt;
end
$$;

create or replace function pgmq._read_groups(p_queue text, p_vt integer, p_qty integer, p_by text, p_now timestamptz)
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
  perform pgmq._table(p_queue, 'q');
  v_heads := pgmq._lock_heads(p_queue, p_now, p_qty);
  if p_by = 'head' or (p_by = 'rank' and cardinality(v_heads) >= p_qty) then
    v_ids := v_heads;
  elsif cardinality(v_heads) > 0 then
    v_ids := pgmq._fill(p_queue, p_now, p_qty, v_heads, p_by);
  end if;
  if p_by = 'group' then
    v_ids := array(select unnest(v_ids) order by 1);
  end if;
  return query select * from pgmq._take_these(p_queue, v_ids, p_vt, p_now);
end
$$;

create or replace function pgmq.read_grouped(queue_name text, vt integer, qty integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_groups(queue_name, vt, qty, 'group', clock_timestamp()); end $$;

create or replace function pgmq.read_grouped_rr(queue_name text, vt integer, qty integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_groups(queue_name, vt, qty, 'rank', clock_timestamp()); end $$;

create or replace function pgmq.read_grouped_head(queue_name text, vt integer, qty integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_groups(queue_name, vt, qty, 'head', clock_timestamp()); end $$;

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
  -- The contract's index cannot tell the oldest message of a group; this one can.
  if to_regclass(format('pgmq.%I', v_name || '_group_idx')) is null then
    execute format('create index %I on pgmq.%I ((headers ->> ''x-pgmq-group''), msg_id)', v_name || '_group_idx', v_name);
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
