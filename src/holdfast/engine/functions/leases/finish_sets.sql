-- Finish many tasks by one statement each: successes, failures and snoozes, as finish_tasks (finish.sql) needs them.
--
-- What the outcomes mean is written once more for single tasks in outcomes.sql, which records the outcomes that are
-- rare. tests/engine/test_finish_sets.py compares the two. All statements pin their plan: rows by primary key, from
-- the outcomes to the tasks.

-- Record the success of jobs of one task, all at once: move them from `tasks` to the history.
create or replace function holdfast.complete_single_task_jobs(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_outcomes text[], p_bodies jsonb[], p_now timestamptz,
  out done bigint[], out lanes bigint[], out effects jsonb)
language plpgsql set search_path = '' set jit = off set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_has_limits boolean;
  v_has_webhooks boolean;
begin
  with input as materialized (
    select u.id, u.attempt, u.nonce, u.output, u.ord
    from unnest(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies) with ordinality as u (id, attempt, nonce, outcome,
      output, ord)
    where u.outcome = 'succeed' order by u.id
  ), deleted as (
    delete from holdfast.tasks t using input g
    where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'
      and t.job_id is null
    returning t.*, g.output as result, g.ord
  ), archived as (
    insert into holdfast.history (id, policy_id, nonce, worker_id, due_at, started_at, finished_at, keep_until, attempt,
      failures, crashes, priority, status, args, output, name, owner, limit_key, phase, message, event_seq, labels,
        batch_id)
    select g.id, l.policy_id, g.nonce, g.worker_id, g.due_at, g.started_at, p_now,
      p_now + coalesce(q.keep_s * interval '1 second', interval '1 day'), g.attempt, g.failures, g.crashes, l.priority,
      'succeeded', g.args, g.result, g.name, g.owner, l.limit_key, g.phase, g.message,
      case when g.owner is not null or g.event_seq is not null then coalesce(g.event_seq, 0) + 1 end, g.labels,
        g.batch_id
    from deleted g join holdfast.lanes l on l.id = g.lane_id left join holdfast.queues q on q.name = l.queue
  )
  select coalesce(array_agg(g.ord), '{}'), array_agg(g.lane_id),
    jsonb_agg(jsonb_build_object('id', g.id, 'owner', g.owner, 'event_seq', g.event_seq, 'unique_key', g.unique_key,
        'batch_id', g.batch_id, 'status', 'succeeded', 'files', g.has_staged_files, 'attempt', g.attempt, 'nonce',
          g.nonce))
      filter (where coalesce(g.owner, g.unique_key) is not null or g.event_seq is not null or g.batch_id is not null
        or g.has_staged_files)
  into done, lanes, effects from deleted g;
  -- Checked after the tasks are locked: a rule that is created meanwhile waits for this transaction, or this one
  -- waited for it.
  select exists (select from holdfast.limit_rules), exists (select from holdfast.webhooks)
    into v_has_limits, v_has_webhooks;
  if not v_has_limits then
    lanes := null;
  end if;
  if v_has_webhooks then
    perform holdfast.enqueue_webhooks_for_tasks(array(select p_ids[n] from unnest(done) as n));
  end if;
  effects := case when effects is null then '[]' else holdfast.emit_task_end_events(effects, p_now) end;
end $$;

-- Record successes, failures and snoozes of running tasks, all at once: of jobs of one task, or of tasks of graphs
-- (p_of_graphs), whose jobs the caller has locked. Jobs of one task that end move to the history. `ended` has the tasks
-- of graphs that ended. The transaction must have an id, because tasks that are retried at once take a position.
create or replace function holdfast.record_outcomes(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_outcomes text[], p_bodies jsonb[], p_of_graphs boolean,
  p_now timestamptz,
  out done bigint[], out lanes bigint[], out effects jsonb, out ended uuid[])
language plpgsql set search_path = '' set jit = off set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_max_snoozes constant integer := 10000;
  v_ended_singles uuid[];
  v_ended_effects jsonb;
  v_ready_lanes bigint[];
begin
  with input as materialized (
    -- A lease that is reported twice in one call is recorded once.
    select distinct on (u.id, u.attempt, u.nonce) u.id, u.attempt, u.nonce, u.outcome, u.body, u.ord
    from unnest(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies) with ordinality as u (id, attempt, nonce, outcome,
      body, ord)
    where u.outcome in ('succeed', 'fail', 'reject', 'snooze') order by u.id, u.attempt, u.nonce, u.ord
  ), locked as materialized (
    select g.*, t.job_id, t.lane_id as old_lane_id, l.returned, t.worker_id, t.started_at, t.owner, t.event_seq,
      t.unique_key, t.batch_id, t.percent, t.has_staged_files,
      case when g.outcome = 'succeed' then 'succeeded'
        when g.outcome = 'reject' or g.outcome = 'fail' and (t.failures + 1 >= k.max_attempts
          or g.body -> 'retry' = 'false') then 'failed' end as final_status,
      case g.outcome
        when 'fail' then holdfast.compute_retry_delay(k, t.failures, holdfast.read_outcome_delay_s(g.body,
          'retry_after_s'))
        when 'snooze' then coalesce(holdfast.read_outcome_delay_s(g.body, 'delay_s'), 0) * interval '1 second'
        else interval '0' end as delay
    from input g, holdfast.tasks t, holdfast.lanes l, holdfast.task_policies k
    where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running'
      and (t.job_id is not null) = p_of_graphs and l.id = t.lane_id and k.id = l.policy_id
      and (g.outcome <> 'snooze' or coalesce(t.snoozes, 0) < v_max_snoozes)
    for update of t
  ), outcomes as materialized (
    select g.*, f.error_type, f.error_message,
      case when f.error_type is not null
        then jsonb_build_object('type', f.error_type, 'message', f.error_message) end as error,
      -- Tasks that were returned once wait in a lane of their own; a retry goes back to the lane of its submit.
      case when g.returned and g.final_status is null then holdfast.find_or_create_sibling_lane(g.old_lane_id, false)
        else g.old_lane_id end as lane_id,
      coalesce(g.final_status, case when g.delay > interval '0' then 'scheduled' else 'ready' end) as status,
      g.final_status is not null and g.job_id is null as is_archived
    from locked g left join lateral (
      select left(coalesce(g.body ->> 'type', 'Error'), 200) as error_type,
        holdfast.truncate_middle(coalesce(g.body ->> 'message', g.body ->> 'reason', ''), 4000) as error_message
      where g.outcome in ('fail', 'reject') offset 0) as f on true
  ), recorded as (
    insert into holdfast.attempts (task_id, job_id, attempt, outcome, worker_id, started_at, ended_at, keep_until,
      owner, error_type, message, traceback, fingerprint)
    select g.id, coalesce(g.job_id, g.id), g.attempt, case g.outcome when 'reject' then 'rejected' else 'failed' end,
      g.worker_id, g.started_at, p_now, p_now + interval '30 days', g.owner, g.error_type, g.error_message,
      holdfast.truncate_middle(g.body ->> 'traceback', 16000),
      coalesce(left(g.body ->> 'fingerprint', 200), g.error_type)
    from outcomes g where g.error_type is not null
  ), deleted as (
    delete from holdfast.tasks t using outcomes g where t.id = g.id and g.is_archived
    returning t.*, g.final_status, case g.outcome when 'succeed' then g.body end as result, g.error as final_error
  ), archived as (
    insert into holdfast.history (id, policy_id, nonce, worker_id, due_at, started_at, finished_at, keep_until, attempt,
      failures, crashes, priority, status, args, output, error, name, owner, limit_key, percent, phase, message,
      event_seq, labels, batch_id)
    select t.id, l.policy_id, t.nonce, t.worker_id, t.due_at, t.started_at, p_now,
      p_now + case t.final_status when 'failed' then coalesce(q.keep_failed_s * interval '1 second', interval '7 days')
        else coalesce(q.keep_s * interval '1 second', interval '1 day') end,
      t.attempt, t.failures + (t.final_status = 'failed')::int, t.crashes, l.priority, t.final_status, t.args, t.result,
      t.final_error, t.name, t.owner, l.limit_key, t.percent, t.phase, t.message,
      case when t.owner is not null or t.event_seq is not null then coalesce(t.event_seq, 0) + 1 end, t.labels,
      t.batch_id
    from deleted t join holdfast.lanes l on l.id = t.lane_id left join holdfast.queues q on q.name = l.queue
  ), updated as (
    update holdfast.tasks t set
      lane_id = g.lane_id,
      status = g.status,
      due_at = case when g.final_status is null then p_now + g.delay else t.due_at end,
      pos = case when g.status = 'ready' then nextval('holdfast.task_positions') else t.pos end,
      failures = t.failures + (g.error is not null)::int,
      losses = case when g.final_status is not null then t.losses end,
      suspect = case when g.final_status is not null then t.suspect end,
      snoozes = case when g.outcome = 'snooze' then coalesce(t.snoozes, 0) + 1 else t.snoozes end,
      output = case when g.outcome = 'succeed' then g.body end,
      error = case when g.outcome = 'snooze' then t.error else g.error end,
      event_seq = case when g.final_status is null then t.event_seq end,
      outcome = case when g.final_status is null then g.outcome else t.outcome end,
      finished_at = case when g.final_status is not null then p_now end,
      lease_until = null
    from outcomes g
    where t.id = g.id and not g.is_archived
  )
  select coalesce(array_agg(g.ord), '{}'), array_agg(g.old_lane_id),
    coalesce(jsonb_agg(jsonb_build_object('files', true, 'id', g.id, 'attempt', g.attempt, 'nonce', g.nonce))
      filter (where g.has_staged_files and g.final_status = 'succeeded'), '[]'),
    coalesce(array_agg(g.id) filter (where g.final_status is not null and not g.is_archived), '{}'),
    array_agg(g.id) filter (where g.is_archived),
    jsonb_agg(jsonb_build_object('id', g.id, 'owner', g.owner, 'event_seq', g.event_seq, 'unique_key', g.unique_key,
        'batch_id', g.batch_id, 'status', g.status, 'percent', g.percent))
      filter (where g.is_archived and (coalesce(g.owner, g.unique_key) is not null or g.event_seq is not null
        or g.batch_id is not null)),
    array_agg(distinct g.lane_id) filter (where g.status = 'ready')
  into done, lanes, effects, ended, v_ended_singles, v_ended_effects, v_ready_lanes from outcomes g;
  if not exists (select from holdfast.limit_rules) then -- checked after the tasks are locked, as above
    lanes := null;
  end if;
  if v_ended_singles is not null and exists (select from holdfast.webhooks) then
    perform holdfast.enqueue_webhooks_for_tasks(v_ended_singles);
  end if;
  if v_ended_effects is not null then
    effects := effects || holdfast.emit_task_end_events(v_ended_effects, p_now);
  end if;
  if v_ready_lanes is not null then
    perform holdfast.wake_workers(v_ready_lanes);
  end if;
end $$;
