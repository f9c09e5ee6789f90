-- Finish: record the outcomes of attempts.
--
-- The outcomes are succeed (body: the output), fail, reject and crash (body: {type, message, traceback,
-- retry_after_s, fingerprint}), lost ({message, suspect}), snooze ({delay_s}), limited ({retry_after_s}), cancel
-- ({reason}) and release (no body). Each is accepted once, from the holder of the lease. If the same holder sends it
-- again, it gets the same response.
--
-- Rows are found by primary key only. The condition on the status is written so that it matches no partial index: the
-- planner would read that index and the dead entries that an old snapshot keeps in it.

-- Record the outcomes of tasks. Returns ok or stale for each, or null if all are ok.
create or replace function holdfast.finish_tasks(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_outcomes text[], p_bodies jsonb[], p_now timestamptz)
    returns text[]
language plpgsql set search_path = '' as $$
declare
  v_singles record;
  v_others record;
begin
  select * into v_singles from holdfast.complete_single_task_jobs(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies,
    p_now);
  perform holdfast.notify_job_waiters(p_ids);
  if cardinality(v_singles.done) = cardinality(p_ids) then
    perform holdfast.apply_task_end_effects(v_singles.lanes, v_singles.effects, p_now);
    return null;
  end if;
  select * into v_others from holdfast.finish_remaining_tasks(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies,
    v_singles.done, p_now);
  perform holdfast.apply_task_end_effects(v_singles.lanes || v_others.lanes, v_singles.effects || v_others.effects,
    p_now);
  return v_others.answers;
end $$;

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

-- Record all outcomes that complete_single_task_jobs leaves: failures, snoozes, tasks of graphs, and stale or repeated
-- outcomes.
create or replace function holdfast.finish_remaining_tasks(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_outcomes text[], p_bodies jsonb[], p_done bigint[],
    p_now timestamptz,
  out answers text[], out lanes bigint[], out effects jsonb)
language plpgsql set search_path = '' as $$
declare
  v_outcome record;
  v_end record;
  v_jobs uuid[] := array(select distinct t.job_id from holdfast.tasks t where t.id = any (p_ids)
    and t.job_id is not null);
  v_ended uuid[] := '{}';
begin
  perform pg_current_xact_id();
  answers := array(select 'ok' from unnest(p_ids));
  lanes := '{}';
  effects := '[]';
  for v_outcome in
    select u.*, t.job_id from unnest(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies) with ordinality
      as u (id, attempt, nonce, outcome, body, ord)
    left join holdfast.tasks t on t.id = u.id
    where u.ord <> all (p_done) order by t.job_id is not null, u.id
  loop
    if v_outcome.job_id is not null and v_jobs is not null then
      perform from holdfast.jobs j where j.id = any (v_jobs) order by j.id for update;
      v_jobs := null;
    end if;
    select * into v_end from holdfast.record_attempt_outcome(v_outcome.id, v_outcome.attempt, v_outcome.nonce,
      v_outcome.outcome,
      v_outcome.body, p_now);
    answers[v_outcome.ord] := v_end.answer;
    lanes := lanes || v_end.lane;
    effects := effects || coalesce(v_end.effects, '[]');
    if v_end.ended then
      v_ended := v_ended || v_outcome.id;
    end if;
  end loop;
  lanes := array_remove(lanes, null);
  if v_ended <> '{}' then
    effects := effects || holdfast.resolve_dependencies(v_ended, p_now);
  end if;
  answers := case when 'stale' = any (answers) then answers end;
end $$;

-- Record one outcome from a lease holder. `lane` is set if a lease ended, `ended` for a task of a graph whose job must
-- be updated.
create or replace function holdfast.record_attempt_outcome(
  p_id uuid, p_attempt integer, p_nonce bigint, p_outcome text, p_body jsonb, p_now timestamptz,
  out answer text, out lane bigint, out ended boolean, out effects jsonb)
language plpgsql set search_path = '' as $$
declare
  v_task holdfast.tasks;
begin
  answer := 'ok';
  select * into v_task from holdfast.tasks t where t.id = p_id and t.attempt = p_attempt
    and t.nonce = p_nonce for update;
  if not found then
    if not exists (select from holdfast.history h where h.id = p_id and h.attempt = p_attempt and h.nonce = p_nonce
      and holdfast.is_repeated_outcome(p_outcome, h.status, null)) then
      answer := 'stale';
    end if;
  elsif v_task.status = 'running' then
    select o.lane, o.ended, o.effects into lane, ended, effects from holdfast.apply_attempt_outcome(v_task, p_outcome,
      p_body,
      true, p_now) as o;
  elsif not holdfast.is_repeated_outcome(p_outcome, v_task.status, v_task.outcome) then
    answer := 'stale';
  end if;
end $$;

-- Return whether an outcome repeats the outcome that the same lease reported before.
create or replace function holdfast.is_repeated_outcome(p_outcome text, p_status text, p_stored_outcome text)
  returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return case p_status when 'succeeded' then p_outcome = 'succeed' when 'cancelled' then p_outcome = 'cancel'
    when 'failed' then p_outcome in ('fail', 'reject', 'crash', 'lost')
      else p_outcome is not distinct from p_stored_outcome end;
end $$;

-- Apply the effects of ended tasks on other tables, in the lock order: limit counters, then batches, then keys, then
-- files. p_effects is a list of {id, owner, event_seq, unique_key, batch_id, status, percent} and of the other
-- objects that apply_attempt_outcome adds.
create or replace function holdfast.apply_task_end_effects(p_lanes bigint[], p_effects jsonb, p_now timestamptz)
  returns void
language plpgsql set search_path = '' as $$
begin
  if cardinality(p_lanes) > 0 then
    perform holdfast.decrement_limit_counters(p_lanes);
  end if;
  if p_effects <> '[]' then
    perform holdfast.pause_limit_keys(p_effects);
    perform holdfast.add_ended_jobs_to_batches(p_effects, p_now);
    delete from holdfast.idempotency_keys k
    using jsonb_to_recordset(p_effects) as a (id uuid, owner text, unique_key text)
    where k.scope = 'unique:' || coalesce(a.owner, '') and k.key = a.unique_key and k.job_id = a.id;
    if p_effects @> '[{"files": true}]' then
      perform holdfast.publish_artifacts(p_effects, p_now);
    end if;
  end if;
end $$;

-- Write the events of jobs of one task that ended. Jobs that no one can watch have no events. Returns p_effects, as
-- apply_task_end_effects reads it.
create or replace function holdfast.emit_task_end_events(p_effects jsonb, p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
begin
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  select a.id, coalesce(a.event_seq, 0) + 1, p_now, p_now + interval '7 days', a.owner, 'job',
    jsonb_build_object('status', a.status, 'percent', case when a.status = 'succeeded' then 100 else a.percent end)
  from jsonb_to_recordset(p_effects) as a (id uuid, owner text, event_seq bigint, status text, percent real)
  where a.owner is not null or a.event_seq is not null;
  return p_effects;
end $$;
