-- Progress: percent, phase and message of tasks and jobs. Each change writes an event in the same transaction.
--
-- The percentage of a job is the weighted share of its tasks, updated by differences under the lock of the job: what
-- a task has already reported is subtracted when it ends. It never goes down, and reaches 100 only when the job has
-- ended.

-- Save the progress of several tasks of a worker: {task id: {percent, phase, message}}. p_held has the ids of the tasks
-- whose lease was just checked.
create or replace function holdfast.save_progress_of_tasks(p_progress jsonb, p_held uuid[], p_now timestamptz)
  returns void
language plpgsql set search_path = '' as $$
declare
  v_task record;
begin
  for v_task in
    select t.id, t.job_id, p.value as body
    from jsonb_each(p_progress) as p
    join holdfast.tasks t on t.id = p.key::uuid
    where t.id = any (p_held)
    order by t.job_id is not null, t.job_id, t.id
  loop
    if v_task.job_id is not null then
      perform from holdfast.jobs j where j.id = v_task.job_id for update skip locked;
      -- Another transaction is ending tasks of the job; the next heartbeat reports the progress again.
      continue when not found;
    end if;
    perform holdfast.save_task_progress(v_task.id, v_task.body, p_now);
  end loop;
end $$;

-- Save the progress of one task, unless nothing changed.
create or replace function holdfast.save_task_progress(p_id uuid, p_body jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_percent double precision := holdfast.parse_number_field(p_body, 'percent', '-infinity', 'infinity');
  v_before record;
  v_after record;
begin
  if v_percent is not null then
    v_percent := least(greatest(v_percent, 0), 100);
  end if;
  select t.percent, t.phase, t.message into v_before from holdfast.tasks t
  where t.id = p_id and t.status || '' = 'running' for no key update skip locked;
  if not found or (coalesce(v_percent::real, v_before.percent), coalesce(p_body ->> 'phase', v_before.phase),
    coalesce(p_body ->> 'message', v_before.message))
    is not distinct from (v_before.percent, v_before.phase, v_before.message) then
    return;
  end if;
  update holdfast.tasks t set percent = coalesce(v_percent, t.percent),
    phase = coalesce(left(p_body ->> 'phase', 200), t.phase),
    message = coalesce(left(p_body ->> 'message', 2000), t.message),
    event_seq = case when t.job_id is null then coalesce(t.event_seq, 0) + 1 end
  where t.id = p_id
  returning t.job_id, t.owner, t.event_seq, t.percent, t.phase, t.message, t.name,
    coalesce(t.weight, 1) * (coalesce(t.percent, 0) - coalesce(v_before.percent, 0)) / 100 as gain
  into v_after;
  if v_after.job_id is not null then
    perform holdfast.save_job_progress(v_after.job_id, v_after.gain, v_after.phase, v_after.message, v_after.name,
      p_now);
  else
    insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
    values (p_id, v_after.event_seq, p_now, p_now + interval '7 days', v_after.owner, 'progress', jsonb_strip_nulls(
      jsonb_build_object('percent', v_after.percent, 'phase', v_after.phase, 'message', v_after.message)));
  end if;
end $$;

-- Add the progress of a task to the percentage of its job.
create or replace function holdfast.save_job_progress(
  p_job uuid, p_gain double precision, p_phase text, p_message text, p_task text, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_job record;
begin
  update holdfast.jobs j set
    progress_weight_done = j.progress_weight_done + p_gain,
    percent = least(99.9, greatest(j.percent,
      holdfast.compute_percent(j.progress_weight_done + p_gain, j.progress_weight))),
    phase = coalesce(p_phase, j.phase), message = coalesce(p_message, j.message), event_seq = j.event_seq + 1
  where j.id = p_job
  returning j.event_seq, j.owner, j.percent, j.phase, j.message into v_job;
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  values (p_job, v_job.event_seq, p_now, p_now + interval '7 days', v_job.owner, 'progress', jsonb_strip_nulls(
    jsonb_build_object('percent', v_job.percent, 'phase', v_job.phase, 'message', v_job.message, 'task', p_task)));
end $$;

-- Save the progress of one task, for workers in any language. Raise HF001 if the lease is stale.
create or replace function holdfast.progress(
  p_task_id uuid, p_attempt integer, p_nonce bigint,
  p_percent double precision default null, p_phase text default null, p_message text default null) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_job uuid := (select t.job_id from holdfast.tasks t where t.id = p_task_id);
begin
  if v_job is not null then
    perform from holdfast.jobs j where j.id = v_job for update;
  end if;
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce);
  perform holdfast.save_task_progress(p_task_id, jsonb_build_object('percent', p_percent, 'phase', p_phase, 'message',
    p_message),
    holdfast.now());
end $$;

-- List the events of a job after sequence number p_after, oldest first. Event streams read them.
create or replace function holdfast.list_job_events(p_job_id uuid, p_after bigint default 0,
  p_limit integer default 100)
returns table (seq bigint, at timestamptz, kind text, body jsonb)
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  return query
  select e.seq, e.at, e.kind, e.body from holdfast.events e
  where e.job_id = p_job_id and e.seq > p_after and (v_user is null or e.owner = v_user)
  order by e.seq limit least(greatest(p_limit, 1), 1000);
end $$;

call holdfast.grant_execute('holdfast_worker', 'progress', 'list_job_events');
call holdfast.grant_execute('service_role', 'progress', 'list_job_events');
call holdfast.grant_execute('authenticated', 'list_job_events');
