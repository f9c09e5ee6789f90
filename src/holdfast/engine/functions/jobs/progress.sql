-- Progress: percent, phase and message of tasks and jobs, each change with an event in the same transaction.
--
-- A job's percent is the weighted share of its tasks, kept by adding differences under the job's lock: what a task
-- already reported is taken off when it ends. It never goes down, and reaches 100 only when the job has ended.

-- p_progress: {task id: {percent, phase, message}} of a worker's tasks; p_held: those whose lease was just proven.
create or replace function holdfast.keep_progress(p_progress jsonb, p_held uuid[], p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_one record;
begin
  for v_one in
    select t.id, t.job_id, p.value as body
    from jsonb_each(p_progress) as p
    join holdfast.tasks t on t.id = p.key::uuid
    where t.id = any (p_held)
    order by t.job_id is not null, t.job_id, t.id
  loop
    if v_one.job_id is not null then
      perform from holdfast.jobs j where j.id = v_one.job_id for update skip locked;
      -- The job is busy ending tasks; the next beat says the same again, or better.
      continue when not found;
    end if;
    perform holdfast.keep_one(v_one.id, v_one.body, p_now);
  end loop;
end $$;

create or replace function holdfast.keep_one(p_id uuid, p_body jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_percent double precision := holdfast.number_in(p_body, 'percent', '-infinity', 'infinity');
  v_old record;
  v_new record;
begin
  if v_percent is not null then
    v_percent := least(greatest(v_percent, 0), 100);
  end if;
  select t.percent, t.phase, t.message into v_old from holdfast.tasks t
  where t.id = p_id and t.status || '' = 'running' for no key update skip locked;
  if not found or (coalesce(v_percent::real, v_old.percent), coalesce(p_body ->> 'phase', v_old.phase), coalesce(p_body ->> 'message', v_old.message))
    is not distinct from (v_old.percent, v_old.phase, v_old.message) then
    return;
  end if;
  update holdfast.tasks t set percent = coalesce(v_percent, t.percent),
    phase = coalesce(left(p_body ->> 'phase', 200), t.phase),
    message = coalesce(left(p_body ->> 'message', 2000), t.message),
    event_seq = case when t.job_id is null then coalesce(t.event_seq, 0) + 1 end
  where t.id = p_id
  returning t.job_id, t.owner, t.event_seq, t.percent, t.phase, t.message, t.name,
    coalesce(t.weight, 1) * (coalesce(t.percent, 0) - coalesce(v_old.percent, 0)) / 100 as gain
  into v_new;
  if v_new.job_id is not null then
    perform holdfast.keep_in_job(v_new.job_id, v_new.gain, v_new.phase, v_new.message, v_new.name, p_now);
  else
    insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
    values (p_id, v_new.event_seq, p_now, p_now + interval '7 days', v_new.owner, 'progress', jsonb_strip_nulls(
      jsonb_build_object('percent', v_new.percent, 'phase', v_new.phase, 'message', v_new.message)));
  end if;
end $$;

create or replace function holdfast.keep_in_job(
  p_job uuid, p_gain double precision, p_phase text, p_message text, p_task text, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_job record;
begin
  update holdfast.jobs j set
    weight_done = j.weight_done + p_gain,
    percent = least(99.9, greatest(j.percent, holdfast.percent_of(j.weight_done + p_gain, j.weight))),
    phase = coalesce(p_phase, j.phase), message = coalesce(p_message, j.message), event_seq = j.event_seq + 1
  where j.id = p_job
  returning j.event_seq, j.owner, j.percent, j.phase, j.message into v_job;
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  values (p_job, v_job.event_seq, p_now, p_now + interval '7 days', v_job.owner, 'progress', jsonb_strip_nulls(
    jsonb_build_object('percent', v_job.percent, 'phase', v_job.phase, 'message', v_job.message, 'task', p_task)));
end $$;

-- Progress of one task from a worker in any language.
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
  perform holdfast.keep_one(p_task_id, jsonb_build_object('percent', p_percent, 'phase', p_phase, 'message', p_message),
    holdfast.now());
end $$;

-- What happened to a job after event p_after, oldest first. The stream of a job reads this.
create or replace function holdfast.job_events(p_job_id uuid, p_after bigint default 0, p_limit integer default 100)
returns table (seq bigint, at timestamptz, kind text, body jsonb)
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
begin
  return query
  select e.seq, e.at, e.kind, e.body from holdfast.events e
  where e.job_id = p_job_id and e.seq > p_after and (v_user is null or e.owner = v_user)
  order by e.seq limit least(greatest(p_limit, 1), 1000);
end $$;

-- Steps: what a task already did, so that its next attempt need not do it again.
create or replace function holdfast.get_steps(p_task_id uuid, p_attempt integer, p_nonce bigint) returns jsonb
language plpgsql security definer set search_path = '' as $$
begin
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce);
  -- A step is remembered with its files or not at all.
  delete from holdfast.steps s where s.task_id = p_task_id and exists (
    select from holdfast.artifacts f where f.task_id = p_task_id and f.step = s.name
      and (f.status in ('doomed', 'gone') or f.expires_at <= holdfast.now()));
  return (select coalesce(jsonb_object_agg(s.name, s.value), '{}') from holdfast.steps s where s.task_id = p_task_id);
end $$;

-- Keeps a step's value, or answers with the one that is there: the first one stays.
create or replace function holdfast.save_step(p_task_id uuid, p_attempt integer, p_nonce bigint, p_name text, p_value jsonb)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_value jsonb;
begin
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce);
  if pg_column_size(p_value) > 262144 then
    perform holdfast.refuse('HF004', 'The value of a step is longer than 256 KiB.', 'value', 'Save it as an artifact and keep its key.');
  end if;
  insert into holdfast.steps (task_id, name, job_id, value, attempt, at)
  select p_task_id, holdfast.check_name(p_name, 'name'), coalesce(t.job_id, t.id), p_value, p_attempt, holdfast.now()
  from holdfast.tasks t where t.id = p_task_id
  on conflict do nothing;
  select s.value into v_value from holdfast.steps s where s.task_id = p_task_id and s.name = p_name;
  return v_value;
end $$;

-- The same for a step that saved files. They stay with it, if it is this attempt's value that is kept.
create or replace function holdfast.save_step_files(
  p_task_id uuid, p_attempt integer, p_nonce bigint, p_name text, p_value jsonb, p_files uuid[]) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_value jsonb := holdfast.save_step(p_task_id, p_attempt, p_nonce, p_name, p_value);
begin
  update holdfast.artifacts f set step = p_name
  where f.id = any (p_files) and f.task_id = p_task_id and f.attempt = p_attempt and f.nonce = p_nonce and f.status = 'staged'
    and exists (select from holdfast.steps s where s.task_id = p_task_id and s.name = p_name and s.attempt = p_attempt);
  return v_value;
end $$;

call holdfast.allow('holdfast_worker', 'progress', 'job_events', 'get_steps', 'save_step', 'save_step_files');
call holdfast.allow('service_role', 'progress', 'job_events', 'get_steps', 'save_step', 'save_step_files');
call holdfast.allow('authenticated', 'job_events');
