-- Progress: percent, phase and message of tasks and jobs. Each change writes an event in the same transaction.
--
-- The percentage of a job is the weighted share of its tasks, updated by differences under the lock of the job: what
-- a task has already reported is subtracted when it ends. It never goes down, and reaches 100 only when the job has
-- ended.

-- Save the progress of tasks whose lease was just checked: {task id: {percent, phase, message}}. What is locked is left
-- out: another transaction is ending the task or others of its job, and the next heartbeat reports the progress again.
create or replace function holdfast.save_progress_of_tasks(p_progress jsonb, p_held uuid[]) returns void
language plpgsql set search_path = '' as $$
begin
  perform holdfast.save_progress(array_agg(t.id), array_agg(t.attempt), array_agg(t.nonce),
    array_agg(holdfast.parse_number_field(p.value, 'percent', '-infinity', 'infinity')),
    array_agg(p.value ->> 'phase'), array_agg(p.value ->> 'message'))
  from jsonb_each(p_progress) as p join holdfast.tasks t on t.id = p.key::uuid
  where t.id = any (p_held) and t.nonce is not null
  having count(*) > 0;
end $$;

-- Save the progress of several tasks of a worker, at most one report of each task. Return the answer to each report, in
-- the order of the reports, or null if all are saved: `ok`; `stale` if the lease has ended; `locked` if another
-- transaction holds the task or its job. It never waits, so that one task does not delay the others.
create or replace function holdfast.save_progress(p_ids uuid[], p_attempts integer[], p_nonces bigint[],
  p_percents double precision[], p_phases text[], p_messages text[]) returns text[]
language plpgsql security definer set search_path = '' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_saved uuid[] := holdfast.save_progress_of_single_tasks(p_ids, p_attempts, p_nonces, p_percents, p_phases,
    p_messages);
begin
  if cardinality(v_saved) < cardinality(p_ids) then
    v_saved := v_saved || holdfast.save_progress_of_graph_tasks(p_ids, p_attempts, p_nonces, p_percents, p_phases,
      p_messages);
  end if;
  if cardinality(v_saved) = cardinality(p_ids) then
    return null;
  end if;
  return array(
    select case when u.id = any (v_saved) then 'ok'
      when exists (select from holdfast.tasks t where t.id = u.id and t.attempt = u.attempt and t.nonce = u.nonce
        and t.status || '' = 'running') then 'locked' else 'stale' end
    from unnest(p_ids, p_attempts, p_nonces) with ordinality as u (id, attempt, nonce, n) order by u.n);
end $$;

-- Save the progress of those tasks that are jobs of one task. Return the ids of the tasks whose lease is held. A report
-- that changes nothing writes no event.
create or replace function holdfast.save_progress_of_single_tasks(p_ids uuid[], p_attempts integer[],
  p_nonces bigint[], p_percents double precision[], p_phases text[], p_messages text[]) returns uuid[]
language plpgsql set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_saved uuid[];
begin
  with input as materialized (
    select u.id, u.attempt, u.nonce, case when u.percent is not null then least(greatest(u.percent, 0), 100)::real end
      as percent, left(u.phase, 200) as phase, left(u.message, 2000) as message
    from unnest(p_ids, p_attempts, p_nonces, p_percents, p_phases, p_messages)
      as u (id, attempt, nonce, percent, phase, message) order by u.id
  ), locked as materialized (
    select t.id, coalesce(i.percent, t.percent) as percent, coalesce(i.phase, t.phase) as phase,
      coalesce(i.message, t.message) as message
    from input i, holdfast.tasks t
    where t.id = i.id and t.attempt = i.attempt and t.nonce = i.nonce and t.status || '' = 'running'
      and t.job_id is null
    for no key update of t skip locked
  ), changed as (
    update holdfast.tasks t set percent = l.percent, phase = l.phase, message = l.message,
      event_seq = coalesce(t.event_seq, 0) + 1
    from locked l
    where t.id = l.id and (t.percent, t.phase, t.message) is distinct from (l.percent, l.phase, l.message)
    returning t.id, t.owner, t.event_seq, t.percent, t.phase, t.message
  ), written as (
    insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
    select c.id, c.event_seq, v_now, v_now + interval '7 days', c.owner, 'progress', jsonb_strip_nulls(
      jsonb_build_object('percent', c.percent, 'phase', c.phase, 'message', c.message))
    from changed c
  )
  select coalesce(array_agg(l.id), '{}') into v_saved from locked l;
  return v_saved;
end $$;

-- Save the progress of those tasks that belong to jobs of several tasks, and add it to the percentages of the jobs.
-- Return the ids of the tasks whose lease is held. Each report has an event of its own, with the progress of the job
-- up to it.
create or replace function holdfast.save_progress_of_graph_tasks(p_ids uuid[], p_attempts integer[],
  p_nonces bigint[], p_percents double precision[], p_phases text[], p_messages text[]) returns uuid[]
language plpgsql set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_jobs uuid[] := array(
    select j.id from holdfast.jobs j where j.id in (
      select t.job_id from unnest(p_ids) as u (id) join holdfast.tasks t on t.id = u.id where t.job_id is not null)
    order by j.id for update skip locked);
  v_saved uuid[];
begin
  with input as materialized (
    select u.id, u.attempt, u.nonce, case when u.percent is not null then least(greatest(u.percent, 0), 100)::real end
      as percent, left(u.phase, 200) as phase, left(u.message, 2000) as message, u.n
    from unnest(p_ids, p_attempts, p_nonces, p_percents, p_phases, p_messages) with ordinality
      as u (id, attempt, nonce, percent, phase, message, n) order by u.id
  ), locked as materialized (
    select t.id, i.n, t.percent as percent_before, coalesce(i.percent, t.percent) as percent,
      coalesce(i.phase, t.phase) as phase, coalesce(i.message, t.message) as message
    from input i, holdfast.tasks t
    where t.id = i.id and t.attempt = i.attempt and t.nonce = i.nonce and t.status || '' = 'running'
      and t.job_id = any (v_jobs)
    for no key update of t skip locked
  ), changed as (
    update holdfast.tasks t set percent = l.percent, phase = l.phase, message = l.message
    from locked l
    where t.id = l.id and (t.percent, t.phase, t.message) is distinct from (l.percent, l.phase, l.message)
    returning t.job_id, l.n, t.name, t.phase, t.message,
      coalesce(t.weight, 1) * (coalesce(t.percent, 0) - coalesce(l.percent_before, 0)) / 100 as gain
  ), numbered as (
    -- phases and messages are numbered, so that a report without one has that of the report before it
    select c.*, row_number() over w as report, sum(c.gain) over w as gain_so_far, count(c.phase) over w as phase_number,
      count(c.message) over w as message_number
    from changed c window w as (partition by c.job_id order by c.n)
  ), reports as materialized (
    select r.job_id, r.report, r.name, r.gain_so_far, j.owner, j.event_seq + r.report as seq,
      least(99.9, greatest(j.percent, max(holdfast.compute_percent(j.progress_weight_done + r.gain_so_far,
        j.progress_weight)) over (partition by r.job_id order by r.report)))::real as percent,
      coalesce(max(r.phase) over (partition by r.job_id, r.phase_number), j.phase) as phase,
      coalesce(max(r.message) over (partition by r.job_id, r.message_number), j.message) as message
    from numbered r join holdfast.jobs j on j.id = r.job_id
  ), jobs_changed as (
    update holdfast.jobs j set progress_weight_done = j.progress_weight_done + r.gain_so_far, percent = r.percent,
      phase = r.phase, message = r.message, event_seq = r.seq
    from (select distinct on (r.job_id) r.* from reports r order by r.job_id, r.report desc) as r
    where j.id = r.job_id
  ), written as (
    insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
    select r.job_id, r.seq, v_now, v_now + interval '7 days', r.owner, 'progress', jsonb_strip_nulls(jsonb_build_object(
      'percent', r.percent, 'phase', r.phase, 'message', r.message, 'task', r.name))
    from reports r
  )
  select coalesce(array_agg(l.id), '{}') into v_saved from locked l;
  return v_saved;
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
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce),
    holdfast.save_progress(array[p_task_id], array[p_attempt], array[p_nonce], array[p_percent], array[p_phase],
      array[p_message]);
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

call holdfast.grant_execute('holdfast_worker', 'progress', 'save_progress', 'list_job_events');
call holdfast.grant_execute('service_role', 'progress', 'save_progress', 'list_job_events');
call holdfast.grant_execute('authenticated', 'list_job_events');
