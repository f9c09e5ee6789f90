-- holdfast: unless-extension pgmq
--
-- Read messages: the lowest ids that are visible and not locked, in id order, made invisible for the visibility
-- timeout.
--
-- The protocol of the hints. A queue has no index on vt; reads walk the primary key. Sequences store where to start,
-- because a sequence is shared by all sessions, has no row versions and takes no lock:
--
--   c_<name>  the cursor: below it no message was visible to the last reader (they were deleted or in flight);
--   f_<name>  the floor:  below it no message existed, and every transaction that could still insert one had ended;
--   z_<name>  the time of the next read without hints, in microseconds.
--
-- A read starts at the cursor. It starts at the floor when the two are close, or when this session has not started
-- there for thirty times as long as that took the last time (at least 20 ms). That read finds, in id order, every
-- message that became visible again below the cursor: its visibility timeout ended, somebody called set_vt, a read was
-- rolled back, or a sender committed late. A read without hints finds rows below the floor that should not exist (an id
-- inserted by hand, hints restored from a dump). It runs every ten seconds or a hundred times its own cost, and at
-- least hourly. So a wrong hint costs time, but never a message.
--
-- The cursor moves to the first message that was visible, read or not, so a rolled-back read needs no repair. The floor
-- moves in several steps (_mark_read_floor, _publish_read_floor), because ids do not commit in order and a delete may
-- roll back. Its state in between is in a session setting, which PostgreSQL restores when a transaction aborts. A
-- reader that sees only part of the rows (row level security, an older snapshot, a filter) moves no hint. A reader
-- without rights on the sequences uses no hint.

-- Return a read hint sequence of a queue, or null when the caller may not use it.
create or replace function pgmq._find_read_hint_sequence(p_queue text, p_letter text) returns regclass
language plpgsql stable
as $$
declare
  v_hint regclass := to_regclass(format('pgmq.%I', pgmq.format_table_name(p_queue, p_letter)));
begin
  return case when has_sequence_privilege(v_hint, 'select')
    and has_sequence_privilege(v_hint, 'update') then v_hint end;
end
$$;

-- Return whether the caller sees every row: row level security is not active, or a policy shows every row and none
-- restricts it. So workers and other roles with such a policy, which _secure_table creates, read with hints as the
-- owner does.
create or replace function pgmq._caller_sees_all_rows(p_table regclass) returns boolean
language plpgsql stable
as $$
begin
  return not row_security_active(p_table) or (
    select coalesce(bool_and(p.polpermissive), false) and coalesce(bool_or(
             p.polcmd in ('*', 'r') and pg_get_expr(p.polqual, p.polrelid) = 'true'
             and exists (select from unnest(p.polroles) r where r = 0 or pg_has_role(r, 'usage'))), false)
      from pg_catalog.pg_policy p where p.polrelid = p_table);
end
$$;

-- Return the first visible message at or after an id.
create or replace function pgmq._find_first_visible_message_id(p_table regclass, p_from bigint, p_now timestamptz,
  p_filter jsonb)
returns bigint
language plpgsql
as $$
declare
  v_head bigint;
begin
  execute format('select msg_id from %s where msg_id >= $1 and vt <= $2 %s order by msg_id limit 1',
    p_table, case when p_filter <> '{}' then 'and message @> $3' end)
    into v_head using p_from, p_now, p_filter;
  return v_head;
end
$$;

-- Return the first message at or after an id, visible or not.
create or replace function pgmq._find_first_message_id(p_table regclass, p_from bigint) returns bigint
language plpgsql
as $$
declare
  v_lowest_id bigint;
begin
  execute format('select msg_id from %s where msg_id >= $1 order by msg_id limit 1', p_table)
    into v_lowest_id using p_from;
  return v_lowest_id;
end
$$;

-- Return the clock time in microseconds since 1970.
create or replace function pgmq._get_now_microseconds() returns bigint
language plpgsql
as $$ begin return extract(epoch from clock_timestamp()) * 1000000; end $$;

-- Move a hint, unless another session has moved it since it was read.
create or replace function pgmq._advance_read_hint(p_hint regclass, p_was bigint, p_to bigint) returns void
language plpgsql
as $$
begin
  if p_to <> p_was and coalesce(pg_sequence_last_value(p_hint), 0) = p_was then
    perform setval(p_hint, greatest(p_to, 0));
  end if;
end
$$;

-- Return the id at which a read of this queue starts, or null when no message is visible.
create or replace function pgmq._find_read_start(p_queue text, p_now timestamptz, p_filter jsonb) returns bigint
language plpgsql
as $$
declare
  v_table regclass := pgmq._get_queue_table(p_queue, 'q');
  v_hints regclass[] := array[pgmq._find_read_hint_sequence(p_queue, 'c'), pgmq._find_read_hint_sequence(p_queue, 'f'),
    pgmq._find_read_hint_sequence(p_queue, 'z')];
  v_state bigint[];
  v_cursor bigint;
  v_floor bigint;
  v_clock bigint := pgmq._get_now_microseconds();
  v_full bigint;
  v_head bigint;
begin
  if array_position(v_hints, null) is not null or not pgmq._caller_sees_all_rows(v_table)
    or current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
  then
    return pgmq._find_first_visible_message_id(v_table, -9223372036854775808, p_now, p_filter);
  end if;
  v_cursor := coalesce(pg_sequence_last_value(v_hints[1]), 0);
  v_floor := coalesce(pg_sequence_last_value(v_hints[2]), 0);
  v_full := coalesce(pg_sequence_last_value(v_hints[3]), 0);
  if v_clock not between v_full - 3600000000 and v_full - 1 then  -- due, or later than it is ever scheduled
    return pgmq._find_read_start_without_hints(v_table, v_hints, p_now, p_filter);
  end if;
  if v_cursor - v_floor > 256 then
    v_state := nullif(current_setting('holdfast.q' || v_table::oid, true), '')::bigint[];
    if v_state is null or v_clock >= v_state[1] then
      return pgmq._find_read_start_from_floor(v_table, v_hints, v_state, p_now, p_filter);
    end if;
    v_head := pgmq._find_first_visible_message_id(v_table, v_cursor, p_now, p_filter);
  else
    v_head := pgmq._find_first_visible_message_id(v_table, least(v_cursor, v_floor), p_now, p_filter);
  end if;
  if v_head is null then
    return pgmq._find_read_start_after_empty_read(v_table, v_hints, v_cursor, p_now, p_filter);
  elsif p_filter = '{}' then
    perform pgmq._advance_read_hint(v_hints[1], v_cursor, v_head);
  end if;
  return v_head;
end
$$;

-- Return the id at which a read starts after no message was visible from the cursor on, or null. If the ids have
-- restarted, the hints are useless. If the cursor is far from the end of the ids, it moves there, after one more search
-- with a snapshot that is newer than that end.
create or replace function pgmq._find_read_start_after_empty_read(
  p_table regclass, p_hints regclass[], p_cursor bigint, p_now timestamptz, p_filter jsonb
) returns bigint
language plpgsql
as $$
declare
  v_end bigint := coalesce(pg_sequence_last_value(pgmq._get_id_sequence(p_table)), 0) + 1;
  v_head bigint;
begin
  if p_cursor > v_end then
    return pgmq._find_read_start_without_hints(p_table, p_hints, p_now, p_filter);
  elsif v_end - p_cursor > 256 and p_filter = '{}' then
    v_head := pgmq._find_first_visible_message_id(p_table, p_cursor, p_now, p_filter);
    perform pgmq._advance_read_hint(p_hints[1], p_cursor, coalesce(v_head, v_end));
  end if;
  return v_head;
end
$$;

-- Return the id of the first visible message from the floor on, or null. p_state is the state of this session: when to
-- start at the floor again, and the progress of the next floor.
create or replace function pgmq._find_read_start_from_floor(
  p_table regclass, p_hints regclass[], p_state bigint[], p_now timestamptz, p_filter jsonb
) returns bigint
language plpgsql
as $$
declare
  v_started bigint := pgmq._get_now_microseconds();
  v_cursor bigint := coalesce(pg_sequence_last_value(p_hints[1]), 0);
  v_head bigint;
  v_cost bigint;
begin
  p_state := pgmq._publish_read_floor(p_table, p_hints[2], coalesce(p_state, '{0}'));
  v_head := pgmq._find_first_visible_message_id(p_table, coalesce(pg_sequence_last_value(p_hints[2]), 0), p_now,
    p_filter);
  v_cost := pgmq._get_now_microseconds() - v_started;
  if v_head is not null and p_filter = '{}' then
    p_state := pgmq._mark_read_floor(p_table, p_state);
    perform pgmq._advance_read_hint(p_hints[1], v_cursor, v_head);
  elsif v_head is null then
    v_head := pgmq._find_read_start_after_empty_read(p_table, p_hints, v_cursor, p_now, p_filter);
  end if;
  p_state[1] := v_started + greatest(20000, 30 * v_cost);
  perform set_config('holdfast.q' || p_table::oid, p_state::text, false);
  return v_head;
end
$$;

-- Move the floor, first half: set a mark above all ids assigned so far. A later transaction stores its transaction
-- id, which is higher than that of every sender whose message id is below the mark.
create or replace function pgmq._mark_read_floor(p_table regclass, p_state bigint[]) returns bigint[]
language plpgsql
as $$
declare
  v_mine bigint := pg_current_xact_id()::text::bigint;
begin
  if p_state[2] is null then
    p_state[2] := coalesce(pg_sequence_last_value(pgmq._get_id_sequence(p_table)), 0) + 1;
    p_state[3] := v_mine;
  elsif p_state[4] is null and p_state[3] <> v_mine then
    p_state[4] := v_mine;
  end if;
  return p_state;
end
$$;

-- Move the floor, second half: when no transaction up to the stored transaction id is running, the lowest existing
-- message, or the mark if no message is below it, is a valid floor. A transaction that has written may see its own
-- uncommitted deletes, so its result stays in the session setting, which an abort restores, until a later transaction.
create or replace function pgmq._publish_read_floor(p_table regclass, p_hint regclass, p_state bigint[])
  returns bigint[]
language plpgsql
as $$
declare
  v_mine bigint := pg_current_xact_id_if_assigned()::text::bigint;
  v_floor bigint := coalesce(pg_sequence_last_value(p_hint), 0);
  v_low bigint;
begin
  if p_state[5] is not null then
    if v_mine is not distinct from p_state[6] then
      return p_state;
    end if;
    v_low := case when p_state[7] = v_floor then p_state[5] end;
  elsif p_state[4] is not null and pg_snapshot_xmin(pg_current_snapshot())::text::bigint > p_state[4] then
    v_low := least(pgmq._find_first_message_id(p_table, v_floor), p_state[2]);
    if v_mine is not null then
      return p_state[1:4] || array[v_low, v_mine, v_floor];
    end if;
  else
    return p_state;
  end if;
  if v_low > v_floor then
    perform pgmq._advance_read_hint(p_hint, v_floor, v_low);
  end if;
  return p_state[1:1];
end
$$;

-- Return the id of the first visible message of the queue without hints, or null. Schedules the next read without
-- hints first, so that one session does it and others continue.
create or replace function pgmq._find_read_start_without_hints(
  p_table regclass, p_hints regclass[], p_now timestamptz, p_filter jsonb
) returns bigint
language plpgsql
as $$
declare
  v_lowest constant bigint := -9223372036854775808;
  v_started bigint := pgmq._get_now_microseconds();
  v_cursor bigint := coalesce(pg_sequence_last_value(p_hints[1]), 0);
  v_floor bigint := coalesce(pg_sequence_last_value(p_hints[2]), 0);
  v_end bigint;
  v_head bigint;
  v_lowest_id bigint;
  v_cost bigint;
begin
  perform setval(p_hints[3], v_started + 10000000);
  v_end := coalesce(pg_sequence_last_value(pgmq._get_id_sequence(p_table)), 0) + 1;
  v_lowest_id := least(pgmq._find_first_message_id(p_table, v_lowest), v_end);
  v_head := pgmq._find_first_visible_message_id(p_table, coalesce(v_lowest_id, v_lowest), p_now, p_filter);
  v_cost := pgmq._get_now_microseconds() - v_started;
  if v_cost > 100000 then
    perform setval(p_hints[3], v_started + least(100 * v_cost, 3000000000));
  end if;
  if v_lowest_id < v_floor then
    perform pgmq._advance_read_hint(p_hints[2], v_floor, v_lowest_id);
  end if;
  if v_head is not null and p_filter = '{}' then
    perform pgmq._advance_read_hint(p_hints[1], v_cursor, v_head);
  elsif v_cursor > v_end then
    perform pgmq._advance_read_hint(p_hints[1], v_cursor, v_end);
  end if;
  return v_head;
end
$$;

-- Read messages; every plain read calls it. Statements with a filter are planned at every call, with settings that
-- force a walk of the primary key; so are the queries of _find_read_start.
create or replace function pgmq._read_messages(
  p_queue text, p_vt double precision, p_qty integer, p_filter jsonb, p_now timestamptz
) returns setof pgmq.message_record
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_head bigint;
begin
  if p_qty < 0 then
    raise exception 'LIMIT must not be negative' using errcode = '2201W';
  end if;
  v_head := pgmq._find_read_start(p_queue, p_now, coalesce(p_filter, '{}'));
  if v_head is null then
    return;
  elsif p_filter <> '{}' then
    return query execute replace(
      pgmq._build_statement_text('read', pgmq._get_queue_table(p_queue, 'q')), 'vt <= $2 order',
        'vt <= $2 and message @> $5 order')
      using v_head, p_now, p_qty, p_vt, p_filter;
  else
    return query execute pgmq._build_statement_call('read', p_queue) using v_head, p_now, p_qty, p_vt;
  end if;
end
$$;

create or replace function pgmq.read(queue_name text, vt integer, qty integer, conditional jsonb)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_messages(queue_name, vt, qty, conditional, clock_timestamp()); end $$;

create or replace function pgmq.read(queue_name text, vt integer, qty integer)
returns setof pgmq.message_record
language plpgsql
as $$ begin return query select * from pgmq._read_messages(queue_name, vt, qty, '{}', clock_timestamp()); end $$;
