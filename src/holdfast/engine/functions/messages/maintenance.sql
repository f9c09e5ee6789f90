-- Maintenance and metrics of message queues. tick_messages is one bounded step: workers and pg_cron can repeat it, also
-- at the same time.

-- Run one bounded round of maintenance of message queues. Return {pruned, dead_lettered, more}; call it again while
-- `more` is true.
create or replace function holdfast.tick_messages(p_limit integer default 1000) returns jsonb
language plpgsql security definer set search_path = ''
as $$
declare
  v_policy holdfast.message_policies;
  v_step bigint;
  v_pruned bigint := 0;
  v_dead bigint := 0;
begin
  for v_policy in select * from holdfast.message_policies p where holdfast.message_queue_exists(p.queue_name)
    order by 1 loop
    v_step := holdfast.delete_expired_archived_messages(v_policy, p_limit - v_pruned);
    v_pruned := v_pruned + v_step;
    v_step := holdfast.move_exhausted_to_dead_letters(v_policy, p_limit - v_dead);
    v_dead := v_dead + v_step;
  end loop;
  -- Remove what dropped queues left behind.
  perform holdfast.delete_message_policy(p.queue_name)
     from holdfast.message_policies p where not holdfast.message_queue_exists(p.queue_name);
  perform holdfast.drop_orphaned_wakeup_sequences();
  perform holdfast.delete_orphaned_message_errors(p_limit);
  return jsonb_build_object('pruned', v_pruned, 'dead_lettered', v_dead, 'more', greatest(v_pruned, v_dead) >= p_limit);
end
$$;

-- Delete archived messages past the retention of the policy.
create or replace function holdfast.delete_expired_archived_messages(
  p_policy holdfast.message_policies, p_limit bigint) returns bigint
language plpgsql set search_path = ''
as $$
declare
  v_count bigint;
begin
  if p_policy.archive_retention is null or p_limit <= 0 then
    return 0;
  end if;
  execute format(
    'delete from %1$s where msg_id = any (array(
       select msg_id from %1$s where archived_at < $1 order by archived_at limit $2 for update skip locked))',
    (holdfast.get_message_table_names(p_policy.queue_name)).p_archive)
    using holdfast.now() - p_policy.archive_retention, p_limit;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Move messages that plain pgmq readers have read max_reads times to the dead letters; holdfast.read_messages does it
-- for its own readers. Messages with many reads are old, so one call reads only the first ten thousand.
create or replace function holdfast.move_exhausted_to_dead_letters(
  p_policy holdfast.message_policies, p_limit bigint) returns bigint
language plpgsql set search_path = ''
as $$
declare
  v_exhausted text[];
begin
  if p_policy.max_reads is null or p_limit <= 0 then
    return 0;
  end if;
  execute format(
    'select array_agg(holdfast.build_message_receipt(msg_id, read_ct, last_read_at)) from (
       select msg_id, read_ct, last_read_at from %1$s
        where msg_id = any (array(select msg_id from %1$s where msg_id >= $4 order by msg_id limit 10000))
          and read_ct >= $1 and vt <= $2 and last_read_at is not null
        order by msg_id limit $3 for update skip locked) exhausted',
    (holdfast.get_message_table_names(p_policy.queue_name)).p_messages)
    into v_exhausted using p_policy.max_reads, holdfast.now(
      ), p_limit, holdfast.get_lowest_message_id_hint(p_policy.queue_name);
  return (select count(*) from holdfast.move_to_dead_letters(
    p_policy.queue_name, v_exhausted, 'read max_reads times without being finished'));
end
$$;

-- Return an id below which the queue has no messages, according to the read hints.
create or replace function holdfast.get_lowest_message_id_hint(p_queue text) returns bigint
language plpgsql set search_path = ''
as $$
begin
  if to_regprocedure('pgmq._get_read_floor(text)') is null then
    return -9223372036854775808;
  end if;
  return pgmq._get_read_floor(p_queue);
end
$$;

-- Drop the wakeup sequences of dropped queues.
create or replace function holdfast.drop_orphaned_wakeup_sequences() returns void
language plpgsql set search_path = ''
as $$
declare
  v_sequence regclass;
begin
  for v_sequence in
    select c.oid::regclass from pg_catalog.pg_class c
     where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'S' and c.relname ~ '^(asleep|notified)_\d+$'
       and not exists (select from pg_catalog.pg_class t where t.oid = split_part(c.relname, '_', 2)::oid)
  loop
    execute format('drop sequence if exists %s', v_sequence);
  end loop;
end
$$;

-- Return the metrics of one queue, or of all.
create or replace function holdfast.list_message_metrics(p_queue text default null)
returns table (
  queue_name text, total bigint, visible bigint, in_flight bigint, delayed bigint, oldest_age interval,
  archived bigint, dead bigint, sent bigint
)
language plpgsql stable set search_path = ''
as $$
declare
  v_queue text;
  v_tables record;
  v_dead_queue text;
begin
  if p_queue is not null then
    perform holdfast.get_message_table_names(p_queue);
  end if;
  for v_queue in
    select m.queue_name from pgmq.list_queues() m
     where (p_queue is null or lower(m.queue_name) = lower(p_queue)) and holdfast.message_queue_exists(m.queue_name)
       order by 1
  loop
    v_tables := holdfast.get_message_table_names(v_queue);
    v_dead_queue := (holdfast.get_message_policy(v_queue)).dead_letter_queue;
    return query execute format(
      'select $1, count(*), count(*) filter (where vt <= $2), count(*) filter (where vt > $2 and read_ct > 0),
              count(*) filter (where vt > $2 and read_ct = 0), $2 - min(enqueued_at),
              (select count(*) from %2$s),
              (select count(*) from %3$s d where lower(d.headers #>> ''{x-holdfast-dead,queue}'') = lower($1)),
              coalesce(pg_sequence_last_value(pg_get_serial_sequence(%4$L, ''msg_id'')::regclass), 0)
         from %1$s',
      v_tables.p_messages, v_tables.p_archive,
      case when v_dead_queue is null then v_tables.p_archive
        else (holdfast.get_message_table_names(v_dead_queue)).p_messages end,
      v_tables.p_messages) using v_queue, holdfast.now();
  end loop;
end
$$;

call holdfast.grant_execute('holdfast_worker', 'tick_messages', 'list_message_metrics');
call holdfast.grant_execute('service_role', 'tick_messages', 'list_message_metrics');
