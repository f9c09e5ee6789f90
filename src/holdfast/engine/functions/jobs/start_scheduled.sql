-- Start a scheduled task before it is due: an application that decides the order of its own waiting tasks lets them
-- snooze and starts the one whose turn it is.

-- Make a scheduled task ready now. Return false when the task does not exist or is not scheduled.
create or replace function holdfast.start_scheduled_task(p_id uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  perform pg_current_xact_id();
  update holdfast.tasks t set due_at = v_now where t.id = p_id and t.status || '' = 'scheduled' and t.due_at > v_now;
  return holdfast.promote_tasks(array[p_id], v_now) > 0;
end $$;

call holdfast.grant_execute('holdfast_worker', 'start_scheduled_task');
call holdfast.grant_execute('service_role', 'start_scheduled_task');
