-- Dependencies: what the end of a task means to its job.
--
-- The caller holds the locks of the jobs. A dependency is marked satisfied once, together with the count that it
-- lowers, so a child becomes ready exactly once. If a parent did not succeed, the dependency decides: `run` counts it
-- as done, `skip` ends the child as skipped (cancelled, error type Skipped), `fail` ends it as the parent ended. The
-- most severe outcome of all parents counts, whatever the order in which they ended; only a failure, the most severe,
-- need not wait for the others. Children that end this way are handled the same way in the next round.

-- Resolve the dependencies below ended tasks, level by level. Return the effects of jobs that ended, for
-- apply_task_end_effects.
create or replace function holdfast.resolve_dependencies(p_ended uuid[], p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_round uuid[] := p_ended;
  v_all uuid[] := p_ended;
begin
  while v_round <> '{}' loop
    v_round := holdfast.satisfy_dependencies(v_round, p_now);
    v_all := v_all || v_round;
  end loop;
  return holdfast.add_ended_tasks_to_job_counts(v_all, p_now);
end $$;

-- Return what an ended parent means to a child, by severity: 0 run, 1 skip, 2 cancel, 3 fail.
create or replace function holdfast.compute_dependency_severity(p_on_failure text, p_parent holdfast.tasks)
  returns integer
language plpgsql immutable set search_path = '' as $$
begin
  return case when p_parent.status = 'succeeded' or p_on_failure = 'run' then 0
    when p_on_failure = 'skip' or p_parent.error ->> 'type' = 'Skipped' then 1
    when p_parent.status = 'cancelled' then 2 else 3 end;
end $$;

-- Mark the dependencies on ended tasks as satisfied, and make their children ready or end them. Return the children
-- that ended.
create or replace function holdfast.satisfy_dependencies(p_parents uuid[], p_now timestamptz) returns uuid[]
language plpgsql set search_path = '' set jit = off set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_ended uuid[];
  v_lanes bigint[];
begin
  with parents as materialized (
    select p.id, case when p.status <> 'succeeded' then p end as task from (select distinct i.id from unnest(p_parents) as i (id)) as i
      join holdfast.tasks p on p.id = i.id
  ), marked as (
    update holdfast.dependencies e set satisfied = true
    from parents p
    where e.parent_id = p.id and not e.satisfied
    returning e.child_id, case when p.task is null then 0
      else holdfast.compute_dependency_severity(e.on_failure, p.task) end as outcome
  ), affected as (
    select child_id, count(*)::int as n, max(outcome) = 3 as fails from marked group by child_id
  ), decided as (
    -- Until the last parent has ended only a failure decides; then all parents do.
    select c.id, d.n, v.name as parent, case when c.pending_parents = d.n or d.fails then v.outcome end as outcome
    from affected d
    join holdfast.tasks c on c.id = d.child_id and c.status || '' = 'waiting'
    left join lateral (
      select p.name, case when p.status = 'succeeded' then 0
          else holdfast.compute_dependency_severity(e.on_failure, p) end as outcome from holdfast.dependencies e
        join holdfast.tasks p on p.id = e.parent_id
      where e.child_id = c.id and p.finished_at is not null and (c.pending_parents = d.n or d.fails)
      order by 2 desc, p.finished_at limit 1
    ) as v on true
  ), moved as (
    update holdfast.tasks c set
      pending_parents = c.pending_parents - j.n,
      status = case when j.outcome = 3 then 'failed' when j.outcome > 0 then 'cancelled' when j.outcome is null
        then 'waiting'
        when c.due_at > p_now then 'scheduled' else 'ready' end,
      pos = case when j.outcome = 0 and c.due_at <= p_now then nextval('holdfast.task_positions') end,
      due_at = case when j.outcome = 0 then greatest(c.due_at, p_now) else c.due_at end,
      finished_at = case when j.outcome > 0 then p_now end,
      error = case when j.outcome > 0 then jsonb_build_object(
        'type', case j.outcome when 1 then 'Skipped' when 2 then 'ParentCancelled' else 'ParentFailed' end,
        'message', format('Did not run: task %s ended without success.', j.parent)) end
    from decided j
    where c.id = j.id
    returning c.id, c.status, c.lane_id
  )
  select coalesce(array_agg(m.id) filter (where m.status in ('failed', 'cancelled')), '{}'),
    array_agg(distinct m.lane_id) filter (where m.status = 'ready')
  into v_ended, v_lanes from moved m;
  if v_lanes is not null then
    perform holdfast.wake_workers(v_lanes);
  end if;
  return v_ended;
end $$;

-- Add ended tasks to the counts of their jobs, once per job, with one event. Return the effects of jobs that ended.
create or replace function holdfast.add_ended_tasks_to_job_counts(p_ended uuid[], p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_job record;
  v_effects jsonb := '[]';
begin
  for v_job in
    with ended as (
      select t.job_id, count(*) filter (where t.status = 'succeeded')::int as succeeded,
        count(*) filter (where t.status = 'failed')::int as failed,
        count(*) filter (where t.status = 'cancelled'
          and t.error ->> 'type' is distinct from 'Skipped')::int as cancelled,
        count(*) filter (where t.status = 'cancelled' and t.error ->> 'type' = 'Skipped')::int as skipped,
        sum(coalesce(t.weight, 1) * (1 - coalesce(t.percent, 0) / 100)) as weight,
        jsonb_object_agg(t.name, t.status) as tasks
      from holdfast.tasks t where t.id = any (p_ended) group by t.job_id
    )
    update holdfast.jobs j set
      succeeded = j.succeeded + e.succeeded, failed = j.failed + e.failed,
      cancelled = j.cancelled + e.cancelled, skipped = j.skipped + e.skipped,
      progress_weight_done = j.progress_weight_done + e.weight,
      percent = least(100, greatest(j.percent,
        holdfast.compute_percent(j.progress_weight_done + e.weight, j.progress_weight))),
      status = case when j.status = 'queued' then 'running' else j.status end,
      started_at = coalesce(j.started_at, p_now), event_seq = j.event_seq + 1
    from ended e where j.id = e.job_id
    returning j.*, e.tasks
  loop
    insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
    values (v_job.id, v_job.event_seq, p_now, p_now + interval '7 days', v_job.owner, 'tasks',
      jsonb_build_object('percent', v_job.percent, 'tasks', v_job.tasks));
    if v_job.succeeded + v_job.failed + v_job.cancelled + v_job.skipped >= v_job.total then
      v_effects := v_effects || holdfast.end_job(v_job.id, p_now);
    end if;
  end loop;
  return v_effects;
end $$;

-- Return the percentage of p_done in p_total.
create or replace function holdfast.compute_percent(p_done double precision, p_total double precision) returns real
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select (case when p_total > 0 then 100 * p_done / p_total else 0 end)::real);
end $$;

-- End a job whose tasks have all ended. Return its effects for apply_task_end_effects.
create or replace function holdfast.end_job(p_id uuid, p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_job holdfast.jobs;
begin
  update holdfast.jobs j set
    status = s.status, percent = case when s.status in ('succeeded', 'partial') then 100 else j.percent end,
    finished_at = p_now, keep_until = p_now + holdfast.get_default_retention(s.status), event_seq = j.event_seq + 1,
    error = case when s.status in ('failed', 'partial') then (
      select t.error - 'traceback' || jsonb_build_object('task', t.name) from holdfast.tasks t
      where t.job_id = p_id and t.status = 'failed' order by t.error ->> 'type' = 'ParentFailed', t.finished_at
        limit 1) end
  from (
    select case
      when i.failed > 0 and i.allow_partial and i.succeeded > 0 then 'partial'
      when i.failed > 0 then 'failed' when i.cancelled > 0 then 'cancelled' else 'succeeded' end as status
    from holdfast.jobs i where i.id = p_id
  ) as s
  where j.id = p_id
  returning j.* into v_job;
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  values (v_job.id, v_job.event_seq, p_now, p_now + interval '7 days', v_job.owner, 'job',
    jsonb_build_object('status', v_job.status, 'percent', v_job.percent));
  perform holdfast.enqueue_webhooks_for_job(v_job);
  return jsonb_build_array(jsonb_build_object('id', v_job.id, 'owner', v_job.owner,
    'unique_key', v_job.unique_key, 'batch_id', v_job.batch_id, 'status', v_job.status));
end $$;
