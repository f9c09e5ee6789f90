-- Jobs and tasks as JSON. A job of one task is read from its task; both sorts of jobs have the same fields.

-- Live and ended tasks as one relation. `job_id` is never null here.
call holdfast.replace_view('all_tasks', $view$
  select t.id, coalesce(t.job_id, t.id) as job_id, t.job_id is null as single, coalesce(t.name, l.type) as name,
    l.queue, l.type,
    l.priority, l.limit_key, t.status, t.attempt, t.failures, t.crashes, t.losses, t.suspect, t.owner,
    t.worker_id, t.due_at, t.started_at,
    t.finished_at, t.lease_until, t.start_before, t.percent, t.phase, t.message, t.weight, t.args, t.output, t.error,
      t.labels,
    t.event_seq, t.batch_id
  from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
  union all
  select h.id, coalesce(h.job_id, h.id), h.job_id is null, coalesce(h.name, k.type), k.queue, k.type,
    h.priority, h.limit_key, h.status, h.attempt, h.failures, h.crashes, null::smallint, null::boolean,
    h.owner, h.worker_id, h.due_at, h.started_at,
    h.finished_at, null, null, h.percent, h.phase, h.message, h.weight, h.args, h.output, h.error, h.labels,
    h.event_seq, h.batch_id
  from holdfast.history h join holdfast.task_policies k on k.id = h.policy_id
$view$);

-- Return the status of a live or ended task, or null.
create or replace function holdfast.get_task_status(p_id uuid) returns text
language plpgsql stable set search_path = '' as $$
begin
  return (
  select coalesce((select t.status from holdfast.tasks t where t.id = p_id),
    (select h.status from holdfast.history h where h.id = p_id order by h.finished_at desc limit 1)));
end $$;

-- Return the status of a job of one task, from the status of the task.
create or replace function holdfast.convert_task_status_to_job_status(p_status text) returns text
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select case when p_status in ('waiting', 'scheduled', 'ready') then 'queued' else p_status end);
end $$;

-- Return the status of a job, or null if it does not exist.
create or replace function holdfast.get_job_status(p_id uuid) returns text
language plpgsql stable set search_path = '' as $$
begin
  return (
  select coalesce((select j.status from holdfast.jobs j where j.id = p_id),
    holdfast.convert_task_status_to_job_status(holdfast.get_task_status(p_id))));
end $$;

-- Return {name: id} of the tasks of a job.
create or replace function holdfast.get_task_ids_by_name(p_job_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_object_agg(t.name, t.id) from holdfast.all_tasks t where t.job_id = p_job_id);
end $$;

-- Return whether a user may see a job: users see their own jobs, services (p_user null) all.
create or replace function holdfast.can_user_see_job(p_job_id uuid, p_user text) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return (
  select exists (select from holdfast.jobs j where j.id = p_job_id and (p_user is null or j.owner = p_user))
    or exists (select from holdfast.tasks t where t.id = p_job_id and t.job_id is null
      and (p_user is null or t.owner = p_user))
    or exists (select from holdfast.history h where h.id = p_job_id and h.job_id is null
      and (p_user is null or h.owner = p_user)));
end $$;

-- Return a job with its tasks, or null; users see the view of access/user_views.sql. The output of a job of several tasks is that of the submitted task if that task
-- added the others; otherwise that of the only task that nothing depends on, if there is exactly one.
create or replace function holdfast.get_job(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_job holdfast.jobs;
  v_task holdfast.all_tasks;
  v_tasks jsonb;
  v_view jsonb;
begin
  select * into v_job from holdfast.jobs j where j.id = p_id and (v_user is null or j.owner = v_user);
  if found then
    select jsonb_agg(holdfast.task_to_json(t) || case when v_user is null and t.status = 'failed'
        then jsonb_build_object('error', holdfast.add_traceback(t.error, t.status, t.id)) else '{}' end order by t.id)
      into v_tasks
    from holdfast.all_tasks t where t.id in (
      select i.id from holdfast.tasks i where i.job_id = p_id union all select h.id from holdfast.history h
        where h.job_id = p_id);
    v_view := holdfast.job_to_json(v_job)
      || jsonb_build_object('tasks', v_tasks, 'output', holdfast.get_job_output(p_id));
    return case when v_user is null then v_view else holdfast.redact_job(v_view) end;
  end if;
  select * into v_task from holdfast.all_tasks t
  where t.id = p_id and t.single and (v_user is null or t.owner = v_user) order by t.finished_at desc nulls first
    limit 1;
  if not found then
    return null;
  end if;
  v_task.error := case when v_user is null then holdfast.add_traceback(v_task.error, v_task.status, v_task.id)
    else v_task.error end;
  v_view := holdfast.single_task_to_job_json(v_task) || jsonb_build_object(
    'tasks', jsonb_build_array(holdfast.task_to_json(v_task)), 'output', v_task.output);
  return case when v_user is null then v_view else holdfast.redact_job(v_view) end;
end $$;

-- Return the output of a job of several tasks, as described at get_job.
create or replace function holdfast.get_job_output(p_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  with members as (
    select i.id, i.output from holdfast.tasks i where i.job_id = p_id
    union all select h.id, h.output from holdfast.history h where h.job_id = p_id
  ), final_tasks as (
    select m.output from members m where not exists (select from holdfast.dependencies e where e.parent_id = m.id)
  )
  select case when exists (select from members m where m.id = p_id)
    then (select m.output from members m where m.id = p_id)
    when (select count(*) from final_tasks) = 1 then (select output from final_tasks) end);
end $$;

-- Return the error of a failed task with its traceback, which is stored once, with the attempt.
create or replace function holdfast.add_traceback(p_error jsonb, p_status text, p_task_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
declare
  v_traceback text;
begin
  if p_status is distinct from 'failed' or p_error is null or p_error ? 'traceback' then
    return p_error;
  end if;
  -- A task that failed because of its parent may have attempts from before.
  select case when a.error_type = p_error ->> 'type' and a.message = p_error ->> 'message' then a.traceback end
    into v_traceback from holdfast.attempts a where a.task_id = p_task_id order by a.attempt desc limit 1;
  return case when v_traceback is null then p_error else p_error || jsonb_build_object('traceback', v_traceback) end;
end $$;

-- Return a task as JSON.
create or replace function holdfast.task_to_json(p_task holdfast.all_tasks) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_build_object('id', p_task.id, 'name', p_task.name, 'type', p_task.type, 'queue', p_task.queue,
    'status', p_task.status, 'attempt', p_task.attempt, 'failures', p_task.failures,
    'progress', holdfast.progress_to_json(case when p_task.status = 'succeeded' then 100 else p_task.percent end,
      p_task.phase, p_task.message),
    'due_at', p_task.due_at, 'started_at', p_task.started_at, 'finished_at', p_task.finished_at,
    'output', p_task.output, 'error', p_task.error));
end $$;

-- Return {percent, phase, message}.
create or replace function holdfast.progress_to_json(p_percent real, p_phase text, p_message text) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select jsonb_build_object('percent', p_percent, 'phase', p_phase, 'message', p_message));
end $$;

-- Return a job of several tasks as JSON, without its tasks.
create or replace function holdfast.job_to_json(p_job holdfast.jobs) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_build_object('id', p_job.id, 'type', p_job.type, 'owner', p_job.owner, 'status', p_job.status,
    'progress', holdfast.progress_to_json(p_job.percent, p_job.phase, p_job.message), 'labels', p_job.labels, 'params',
      p_job.params,
    'error', p_job.error, 'created_at', holdfast.get_id_time(p_job.id), 'started_at', p_job.started_at,
    'finished_at', p_job.finished_at, 'event_seq', p_job.event_seq,
    'counts', jsonb_build_object('total', p_job.total, 'succeeded', p_job.succeeded, 'failed', p_job.failed,
      'cancelled', p_job.cancelled, 'skipped', p_job.skipped)));
end $$;

-- Return a job of one task as JSON, with the same fields as job_to_json.
create or replace function holdfast.single_task_to_job_json(p_task holdfast.all_tasks) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_build_object('id', p_task.id, 'type', p_task.type, 'owner', p_task.owner,
    'status', holdfast.convert_task_status_to_job_status(p_task.status),
    'progress', holdfast.progress_to_json(case when p_task.status = 'succeeded' then 100
      else coalesce(p_task.percent, 0) end::real,
      p_task.phase, p_task.message),
    'labels', p_task.labels, 'params', p_task.args, 'error', p_task.error, 'created_at',
      holdfast.get_id_time(p_task.id),
    'started_at', p_task.started_at, 'finished_at', p_task.finished_at, 'event_seq', coalesce(p_task.event_seq, 0),
    'counts', jsonb_build_object('total', 1, 'succeeded', (p_task.status = 'succeeded')::int,
      'failed', (p_task.status = 'failed')::int, 'cancelled', (p_task.status = 'cancelled')::int, 'skipped', 0)));
end $$;

call holdfast.set_security_invoker('all_tasks');
call holdfast.grant_execute('holdfast_worker', 'get_job');
call holdfast.grant_execute('service_role', 'get_job');
call holdfast.grant_execute('authenticated', 'get_job');
