-- Retry: run ended jobs and tasks again. Attempt numbers continue, so leases of the past stay stale; failures and
-- crashes count from zero.

-- Run an ended job again: the tasks that failed or were cancelled, or the named tasks, with all that depend on them.
create or replace function holdfast.retry_job(p_id uuid, p_from text[] default null,
  p_delay_s double precision default 0)
returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_now timestamptz := holdfast.now();
  v_due timestamptz := v_now + least(greatest(coalesce(p_delay_s, 0), 0), 315360000) * interval '1 second';
  v_before record;
  v_count integer := 0;
begin
  if not holdfast.can_user_see_job(p_id, v_user) then
    perform holdfast.raise_error('HF002', format('Job %s does not exist.', p_id), 'id');
  end if;
  if v_user is not null then
    perform holdfast.lock_job_count(v_user);
    perform holdfast.check_job_count(v_user, holdfast.get_user_job_limit(), p_id);
  end if;
  perform pg_current_xact_id();
  select j.status, j.batch_id, j.finished_at is not null as ended into v_before from holdfast.jobs j
    where j.id = p_id for update;
  if found then
    v_count := holdfast.retry_graph_job(p_id, p_from, v_due, v_now);
  else
    perform holdfast.move_tasks_back_from_history(array(
      select h.id from holdfast.history h where h.id = p_id and h.job_id is null));
    select t.status, t.batch_id, true as ended into v_before from holdfast.tasks t
    where t.id = p_id and t.status || '' in ('failed', 'cancelled', 'succeeded') for update;
    if found then
      v_count := 1;
      perform holdfast.reset_task_for_retry(p_id, v_due, null, v_now);
    end if;
  end if;
  if v_count > 0 and v_before.ended then
    perform holdfast.subtract_restarted_job_from_batch(v_before.batch_id, v_before.status, v_now);
  end if;
  return jsonb_build_object('restarted', v_count, 'status', holdfast.get_job_status(p_id));
end $$;

-- Run tasks of a job of several tasks again, with all tasks that depend on them. Return the number of tasks.
create or replace function holdfast.retry_graph_job(p_id uuid, p_from text[], p_due_at timestamptz, p_now timestamptz)
  returns integer
language plpgsql set search_path = '' as $$
declare
  v_task_ids uuid[];
begin
  perform holdfast.move_tasks_back_from_history(array(select h.id from holdfast.history h where h.job_id = p_id));
  v_task_ids := array(select t.id from holdfast.tasks t where t.job_id = p_id
    and case when p_from is null then t.status || '' in ('failed', 'cancelled') else t.name = any (p_from) end);
  if p_from is not null then
    if cardinality(v_task_ids) < cardinality(p_from) then
      perform holdfast.raise_error('HF004', 'from names a task that the job does not have.', 'from');
    end if;
    v_task_ids := holdfast.list_tasks_with_descendants(v_task_ids);
  end if;
  if exists (select from holdfast.tasks t where t.id = any (v_task_ids)
    and t.status || '' in ('waiting', 'scheduled', 'ready', 'running')) then
    perform holdfast.raise_error('HF003', 'A task to retry has not ended yet.', 'id',
      'Cancel the job first, or wait for it.');
  end if;
  update holdfast.dependencies e set satisfied = not (e.parent_id = any (v_task_ids))
    and p.status || '' in ('succeeded', 'failed', 'cancelled')
  from holdfast.tasks p where e.child_id = any (v_task_ids) and p.id = e.parent_id;
  perform holdfast.reset_task_for_retry(i, p_due_at, (
      select count(*) filter (where not e.satisfied)::int from holdfast.dependencies e
        where e.child_id = i having count(*) > 0), p_now)
    from unnest(v_task_ids) as i;
  perform holdfast.recount_job_tasks(p_id, p_now);
  return cardinality(v_task_ids);
end $$;

-- Make an ended task waiting, scheduled or ready again.
create or replace function holdfast.reset_task_for_retry(p_id uuid, p_due_at timestamptz, p_pending_parents integer,
  p_now timestamptz)
  returns void
language plpgsql set search_path = '' as $$
begin
  update holdfast.tasks t set
    status = case when p_pending_parents > 0 then 'waiting' when p_due_at > p_now then 'scheduled' else 'ready' end,
    pos = case when coalesce(p_pending_parents, 0) = 0 and p_due_at <= p_now
      then nextval('holdfast.task_positions') end,
    due_at = greatest(p_due_at, p_now), pending_parents = p_pending_parents, failures = 0, crashes = 0, losses = null,
      suspect = null, snoozes = null,
      nonce = null,
      lease_until = null,
    finished_at = null, output = null, error = null, percent = null, phase = null, message = null,
    -- Files of a saved step become visible with the attempt that succeeds.
    has_staged_files = coalesce(t.has_staged_files, (select true from holdfast.artifacts f where f.task_id = p_id
      and f.status = 'staged'
      and f.step_name is not null limit 1))
  where t.id = p_id;
  perform holdfast.wake_workers(array(select t.lane_id from holdfast.tasks t where t.id = p_id and t.status = 'ready'));
end $$;

-- Move tasks from the history back to `tasks`, as they ended. The row lock decides between two callers.
create or replace function holdfast.move_tasks_back_from_history(p_ids uuid[]) returns uuid[]
language plpgsql set search_path = '' as $$
declare
  v_ids uuid[];
begin
  with deleted as (
    delete from holdfast.history h where h.id = any (p_ids) returning h.*
  ), inserted as (
    insert into holdfast.tasks (id, job_id, lane_id, nonce, worker_id, due_at, started_at, finished_at, attempt,
      failures, crashes,
      status, args, output, error, name, owner, weight, percent, phase, message, event_seq, labels, batch_id)
    select g.id, g.job_id, holdfast.find_or_create_lane_for_policy(g.policy_id, g.priority, g.limit_key, g.owner),
      g.nonce, g.worker_id, g.due_at, g.started_at,
      g.finished_at, g.attempt, g.failures, g.crashes, g.status, g.args, g.output, g.error, g.name, g.owner, g.weight,
        g.percent,
      g.phase, g.message, g.event_seq, g.labels, g.batch_id
    from deleted g
    returning id
  )
  select coalesce(array_agg(b.id), '{}') into v_ids from inserted b;
  return v_ids;
end $$;

-- Return the ids of these tasks and of all tasks that depend on them.
create or replace function holdfast.list_tasks_with_descendants(p_ids uuid[]) returns uuid[]
language plpgsql stable set search_path = '' as $$
begin
  return array(
    with recursive below as (
      select i as id from unnest(p_ids) as i
      union
      select e.child_id from holdfast.dependencies e join below b on e.parent_id = b.id
    )
    select b.id from below b);
end $$;

-- Compute the task counts of a job again after some of its tasks were reset.
create or replace function holdfast.recount_job_tasks(p_id uuid, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_job holdfast.jobs;
begin
  update holdfast.jobs j set
    total = c.total, succeeded = c.succeeded, failed = c.failed, cancelled = c.cancelled, skipped = c.skipped,
    progress_weight = c.weight, progress_weight_done = c.weight_done,
    percent = holdfast.compute_percent(c.weight_done, c.weight),
    status = case when c.succeeded + c.failed + c.cancelled + c.skipped = c.total then j.status
      when c.succeeded > 0 then 'running' else 'queued' end,
    finished_at = case when c.succeeded + c.failed + c.cancelled + c.skipped = c.total then j.finished_at end,
    keep_until = case when c.succeeded + c.failed + c.cancelled + c.skipped = c.total then j.keep_until end,
    archived = false, error = null, event_seq = j.event_seq + 1
  from (
    select count(*) as total, count(*) filter (where t.status = 'succeeded') as succeeded,
      count(*) filter (where t.status = 'failed') as failed,
      count(*) filter (where t.status = 'cancelled' and t.error ->> 'type' is distinct from 'Skipped') as cancelled,
      count(*) filter (where t.status = 'cancelled' and t.error ->> 'type' = 'Skipped') as skipped,
      sum(coalesce(t.weight, 1)) as weight,
      coalesce(sum(coalesce(t.weight, 1)) filter (where t.finished_at is not null), 0) as weight_done
    from holdfast.tasks t where t.job_id = p_id
  ) as c
  where j.id = p_id
  returning j.* into v_job;
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  values (v_job.id, v_job.event_seq, p_now, p_now + interval '7 days', v_job.owner, 'job',
    jsonb_build_object('status', v_job.status, 'percent', v_job.percent));
end $$;

call holdfast.grant_execute('holdfast_worker', 'retry_job');
call holdfast.grant_execute('service_role', 'retry_job');
call holdfast.grant_execute('authenticated', 'retry_job');
