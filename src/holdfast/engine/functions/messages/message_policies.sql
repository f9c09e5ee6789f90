-- Policies of message queues, stored beside any pgmq: how often a message is read, the backoff after a failure, the
-- dead-letter queue, and the retention of the archive.

-- Return the policy of a queue, or the defaults. Upper and lower case in the name do not matter.
create or replace function holdfast.get_message_policy(p_queue text) returns holdfast.message_policies
language plpgsql stable security definer set search_path = ''
as $$
declare
  v_policy holdfast.message_policies;
begin
  select * into v_policy from holdfast.message_policies where queue_name = lower(p_queue);
  if not found then
    v_policy.queue_name := lower(p_queue);
    v_policy.vt := '30 seconds';
    v_policy.backoff := '5 seconds';
    v_policy.backoff_cap := '15 minutes';
  end if;
  return v_policy;
end
$$;

-- Replace the policy of a queue; omitted arguments get their defaults. Create the dead-letter queue if it is missing.
create or replace function holdfast.put_message_policy(
  p_queue text,
  p_max_reads integer default null,
  p_dead_letter_queue text default null,
  p_backoff interval default '5 seconds',
  p_backoff_cap interval default '15 minutes',
  p_archive_retention interval default null,
  p_vt interval default '30 seconds'
) returns holdfast.message_policies
language plpgsql security definer set search_path = ''
as $$
declare
  v_policy holdfast.message_policies;
begin
  perform holdfast.get_message_table_names(p_queue);
  -- Consumers compute with these durations after every failure, so none of them may overflow.
  if greatest(p_vt, p_backoff, p_backoff_cap) > interval '1 year' or p_archive_retention > interval '100 years' then
    raise exception 'vt, backoff and backoff_cap must be at most 1 year, and archive_retention at most 100 years.'
      using errcode = 'HF004', column = 'backoff', hint = 'Choose shorter durations.';
  end if;
  if lower(p_dead_letter_queue) = lower(p_queue) then
    raise exception 'A queue cannot be its own dead-letter queue.'
      using errcode = 'HF004', column = 'dead_letter_queue', hint = 'Choose another queue.';
  end if;
  if p_dead_letter_queue is not null and not holdfast.message_queue_exists(p_dead_letter_queue) then
    perform pgmq.create(p_dead_letter_queue);
  end if;
  insert into holdfast.message_policies as p
    (queue_name, vt, max_reads, backoff, backoff_cap, dead_letter_queue, archive_retention)
  values (lower(p_queue), p_vt, p_max_reads, p_backoff, p_backoff_cap, lower(p_dead_letter_queue), p_archive_retention)
  on conflict (queue_name) do update
    set vt = excluded.vt, max_reads = excluded.max_reads, backoff = excluded.backoff,
        backoff_cap = excluded.backoff_cap, dead_letter_queue = excluded.dead_letter_queue,
        archive_retention = excluded.archive_retention, updated_at = pg_catalog.clock_timestamp()
  returning * into v_policy;
  return v_policy;
exception
  when check_violation or not_null_violation then
    raise exception 'Invalid policy for queue %: %.', quote_ident(p_queue), sqlerrm
      using errcode = 'HF004', hint = 'Durations and counts must be positive.';
end
$$;

-- Delete the policy of a queue, so that the defaults apply. Return false when the queue has no policy.
create or replace function holdfast.delete_message_policy(p_queue text) returns boolean
language plpgsql security definer set search_path = ''
as $$
begin
  delete from holdfast.message_policies where queue_name = lower(p_queue);
  return found;
end
$$;

-- Return whether a message queue exists.
create or replace function holdfast.message_queue_exists(p_queue text) returns boolean
language sql stable set search_path = ''
as $$ select to_regclass(format('pgmq.%I', pgmq.format_table_name(p_queue, 'q'))) is not null $$;

-- Return the quoted names of the message table and the archive table of a queue, or raise HF002.
create or replace function holdfast.get_message_table_names(p_queue text, out p_messages text, out p_archive text)
language plpgsql stable set search_path = ''
as $$
begin
  if p_queue is null or not holdfast.message_queue_exists(p_queue) then
    raise exception 'Message queue % does not exist.', coalesce(quote_ident(p_queue), 'null')
      using errcode = 'HF002', column = 'queue', hint = format('Create it with: select pgmq.create(%L)', p_queue);
  end if;
  p_messages := format('pgmq.%I', pgmq.format_table_name(p_queue, 'q'));
  p_archive := format('pgmq.%I', pgmq.format_table_name(p_queue, 'a'));
end
$$;

call holdfast.grant_execute('holdfast_worker', 'get_message_policy', 'put_message_policy', 'message_queue_exists',
  'get_message_table_names');
call holdfast.grant_execute('service_role', 'get_message_policy', 'put_message_policy', 'message_queue_exists',
  'get_message_table_names');
