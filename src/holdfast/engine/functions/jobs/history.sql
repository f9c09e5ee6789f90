-- History: move ended tasks to the history, and delete them when their time is over. partitions.sql manages the days.

-- Return how long jobs are kept unless their queue sets another time.
create or replace function holdfast.get_default_retention(p_status text) returns interval
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select case when p_status in ('failed', 'partial') then interval '7 days' else interval '1 day' end);
end $$;

-- Return how long a queue keeps jobs that ended with this status.
create or replace function holdfast.get_job_retention(p_status text, p_queue text) returns interval
language plpgsql stable set search_path = '' as $$
begin
  return (
  select coalesce((
    select (case when p_status = 'failed' then q.keep_failed_s else q.keep_s end) * interval '1 second'
    from holdfast.queues q where q.name = p_queue), holdfast.get_default_retention(p_status)));
end $$;

-- Move ended tasks to the history. `p_status` is the status of the job for tasks of a graph, so that all of them are
-- kept for the same time, and null for jobs of one task.
create or replace function holdfast.archive_tasks(p_ids uuid[], p_status text) returns void
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off as $$
begin
  with deleted as (
    delete from holdfast.tasks t where t.id = any (p_ids) and t.status || '' in ('succeeded', 'failed', 'cancelled')
      returning t.*
  )
  insert into holdfast.history (id, job_id, policy_id, nonce, worker_id, due_at, started_at, finished_at, keep_until,
    attempt,
    failures, crashes, priority, status, args, output, error, name, owner, limit_key, weight, percent, phase, message,
    event_seq, labels, batch_id)
  select g.id, g.job_id, l.policy_id, g.nonce, g.worker_id, g.due_at, g.started_at, g.finished_at,
    greatest(g.finished_at, holdfast.now()) + holdfast.get_job_retention(coalesce(p_status, g.status), l.queue),
      g.attempt,
    g.failures, g.crashes, l.priority, g.status, g.args, g.output, g.error, g.name, g.owner, l.limit_key, g.weight,
      g.percent,
    g.phase, g.message, g.event_seq, g.labels, g.batch_id
  from deleted g join holdfast.lanes l on l.id = g.lane_id;
  if p_status is null and exists (select from holdfast.webhooks) then
    perform holdfast.enqueue_webhooks_for_tasks(p_ids);
  end if;
end $$;

-- Move the tasks of ended jobs to the history. Jobs stay for one minute, so that a retry at once finds them in place.
-- Returns the number of tasks.
create or replace function holdfast.archive_jobs(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_paused uuid[] := holdfast.list_paused_subjects('archiving of a job', p_now)::uuid[];
begin
  return holdfast.run_isolated('archiving of a job',
    format('select holdfast.archive_ended_jobs($1::uuid[], %s)', p_limit), array(
      select j.id::text from holdfast.jobs j
      where j.finished_at < p_now - interval '1 minute' and j.finished_at is not null and not j.archived
        and j.id <> all (v_paused)
      order by j.finished_at limit p_limit), p_now);
end $$;

-- Move the tasks of these jobs to the history, job by job, up to p_limit tasks. Returns the number of tasks.
create or replace function holdfast.archive_ended_jobs(p_jobs uuid[], p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_job record;
  v_ids uuid[];
  v_count integer := 0;
begin
  for v_job in
    select j.id, j.status from holdfast.jobs j
    where j.id = any (p_jobs) and j.finished_at is not null and not j.archived
    order by j.finished_at for update skip locked
  loop
    v_ids := array(select t.id from holdfast.tasks t where t.job_id = v_job.id order by t.id
      limit greatest(p_limit - v_count, 1));
    perform holdfast.archive_tasks(v_ids, v_job.status);
    if not exists (select from holdfast.tasks t where t.job_id = v_job.id) then
      update holdfast.jobs j set archived = true,
        keep_until = greatest(j.keep_until, (select max(h.keep_until) from holdfast.history h where h.job_id = j.id))
      where j.id = v_job.id;
    end if;
    v_count := v_count + cardinality(v_ids);
    exit when v_count >= p_limit;
  end loop;
  return v_count;
end $$;

-- Delete jobs of several tasks whose retention has ended, with their dependencies. Returns their number.
create or replace function holdfast.delete_expired_jobs(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_ids uuid[] := array(
    select j.id from holdfast.jobs j where j.keep_until < p_now and j.archived
    order by j.keep_until limit p_limit for update skip locked);
begin
  delete from holdfast.dependencies e where e.job_id = any (v_ids);
  delete from holdfast.jobs j where j.id = any (v_ids);
  return cardinality(v_ids);
end $$;

-- Delete expired rows of the default partitions, and rows that belong to deleted jobs, up to p_limit of each. Returns
-- their number.
create or replace function holdfast.delete_expired_rows(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_count integer := 0;
  v_deleted integer;
begin
  delete from holdfast.history_default r where r.ctid = any (array(
    select h.ctid from holdfast.history_default h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_deleted = row_count;
  v_count := v_count + v_deleted;
  delete from holdfast.attempts_default r where r.ctid = any (array(
    select h.ctid from holdfast.attempts_default h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_deleted = row_count;
  v_count := v_count + v_deleted;
  delete from holdfast.events_default r where r.ctid = any (array(
    select h.ctid from holdfast.events_default h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_deleted = row_count;
  v_count := v_count + v_deleted;
  delete from holdfast.logs_default r where r.ctid = any (array(
    select h.ctid from holdfast.logs_default h where h.keep_until < p_now limit p_limit for update skip locked));
  get diagnostics v_deleted = row_count;
  v_count := v_count + v_deleted;
  delete from holdfast.idempotency_keys k where (k.scope, k.key) in (
    select o.scope, o.key from holdfast.idempotency_keys o
    where o.keep_until < p_now and not exists (select from holdfast.tasks t where t.id = o.job_id)
      and not exists (select from holdfast.jobs j where j.id = o.job_id and j.finished_at is null)
    limit p_limit for update skip locked);
  get diagnostics v_deleted = row_count;
  v_count := v_count + v_deleted;
  delete from holdfast.batches b where b.id in (
    select o.id from holdfast.batches o where o.keep_until < p_now limit p_limit for update skip locked);
  get diagnostics v_deleted = row_count;
  v_count := v_count + v_deleted;
  delete from holdfast.step_results s where (s.task_id, s.name) in (
    select o.task_id, o.name from holdfast.step_results o
    where o.at < p_now - interval '1 hour' and not exists (select from holdfast.tasks t where t.id = o.task_id)
    limit p_limit for update skip locked);
  get diagnostics v_deleted = row_count;
  delete from holdfast.workers w where w.seen_at < p_now - interval '35 days';
  return v_count + v_deleted;
end $$;
