-- The last error of messages that are being retried. fail_messages saves it. It is deleted with the message: at once
-- when the message is finished with its receipt, and by maintenance when a plain pgmq call removed it.

-- Save the error of messages whose attempt failed. p_failed: [{msg_id, enqueued_at, read_ct}].
create or replace function holdfast.save_message_errors(p_queue text, p_failed jsonb, p_error text) returns void
language plpgsql security definer set search_path = ''
as $$
begin
  if coalesce(p_error, '') = '' then
    return;
  end if;
  insert into holdfast.message_errors as e (queue_name, msg_id, sent_at, reads, failed_at, checked_at, error)
  select lower(p_queue), f.msg_id, f.enqueued_at, f.read_ct, holdfast.now(), holdfast.now(), left(p_error, 4000)
    from jsonb_to_recordset(p_failed) f (msg_id bigint, enqueued_at timestamptz, read_ct integer)
   order by f.msg_id
  on conflict (queue_name, msg_id) do update
    set sent_at = excluded.sent_at, reads = excluded.reads, failed_at = excluded.failed_at,
        checked_at = excluded.checked_at, error = excluded.error;
end
$$;

-- Return the error of one message, or no row.
create or replace function holdfast.get_message_error(p_queue text, p_msg_id bigint, p_sent_at timestamptz)
returns table (error text, failed_at timestamptz)
language sql stable security definer set search_path = ''
as $$
  select e.error, e.failed_at from holdfast.message_errors e
   where e.queue_name = lower(p_queue) and e.msg_id = p_msg_id and e.sent_at = p_sent_at
$$;

-- Delete the saved errors of messages.
create or replace function holdfast.delete_message_errors(p_queue text, p_msg_ids bigint[]) returns void
language sql security definer set search_path = ''
as $$ delete from holdfast.message_errors where queue_name = lower(p_queue) and msg_id = any (p_msg_ids) $$;

-- Delete saved errors whose message no longer exists, and return their number. Check the oldest errors that were not
-- checked for an hour.
create or replace function holdfast.delete_orphaned_message_errors(p_limit bigint) returns bigint
language plpgsql security definer set search_path = ''
as $$
declare
  v_queue text;
  v_ids bigint[];
  v_existing bigint[];
  v_deleted bigint := 0;
begin
  for v_queue, v_ids in
    select queue_name, array_agg(msg_id) from (
      select queue_name, msg_id from holdfast.message_errors
       where checked_at < holdfast.now() - interval '1 hour' order by checked_at limit p_limit) old
     group by 1
  loop
    v_existing := '{}';
    if holdfast.message_queue_exists(v_queue) then
      execute format('select coalesce(array_agg(m.msg_id), ''{}'') from %s m join holdfast.message_errors e
          on e.queue_name = $1 and e.msg_id = m.msg_id and e.sent_at = m.enqueued_at where m.msg_id = any ($2)',
        (holdfast.get_message_table_names(v_queue)).p_messages) into v_existing using v_queue, v_ids;
    end if;
    update holdfast.message_errors set checked_at = holdfast.now(
      ) where queue_name = v_queue and msg_id = any (v_existing);
    delete from holdfast.message_errors
     where queue_name = v_queue and msg_id = any (v_ids) and msg_id <> all (v_existing);
    v_deleted := v_deleted + cardinality(v_ids) - cardinality(v_existing);
  end loop;
  return v_deleted;
end
$$;

call holdfast.grant_execute('holdfast_worker', 'save_message_errors', 'get_message_error', 'delete_message_errors');
call holdfast.grant_execute('service_role', 'save_message_errors', 'get_message_error', 'delete_message_errors');
