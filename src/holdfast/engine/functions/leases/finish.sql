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
--
-- Successes, failures and snoozes are recorded by one statement for all tasks; finish_sets.sql has these statements.
-- The order of the locks is: jobs of one task, then rows of `jobs`, then tasks of graphs, each by id.
create or replace function holdfast.finish_tasks(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_outcomes text[], p_bodies jsonb[], p_now timestamptz)
    returns text[]
language plpgsql set search_path = '' as $$
declare
  v_set record;
  v_done bigint[];
  v_lanes bigint[];
  v_effects jsonb;
  v_ended uuid[] := '{}';
  v_jobs uuid[];
  v_has_singles boolean;
  v_answers text[];
begin
  select * into v_set from holdfast.complete_single_task_jobs(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies,
    p_now);
  perform holdfast.notify_job_waiters(p_ids);
  v_done := v_set.done;
  v_lanes := v_set.lanes;
  v_effects := v_set.effects;
  if cardinality(v_done) < cardinality(p_ids) then
    perform pg_current_xact_id();  -- before the first position
    select array_agg(distinct t.job_id) filter (where t.job_id is not null), bool_or(t.job_id is null)
      into v_jobs, v_has_singles from holdfast.tasks t where t.id = any (p_ids);
    if v_has_singles then
      select * into v_set from holdfast.record_outcomes(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies, false,
        p_now);
      v_done := v_done || v_set.done;
      v_lanes := v_lanes || v_set.lanes;
      v_effects := v_effects || v_set.effects;
    end if;
    if v_jobs is not null then
      perform from holdfast.jobs j where j.id = any (v_jobs) order by j.id for update;
      select * into v_set from holdfast.record_outcomes(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies, true, p_now);
      v_done := v_done || v_set.done;
      v_lanes := v_lanes || v_set.lanes;
      v_effects := v_effects || v_set.effects;
      v_ended := v_set.ended;
    end if;
  end if;
  if cardinality(v_done) < cardinality(p_ids) then
    select * into v_set from holdfast.record_remaining_outcomes(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies,
      v_done, p_now);
    v_answers := v_set.answers;
    v_lanes := v_lanes || v_set.lanes;
    v_effects := v_effects || v_set.effects;
    v_ended := v_ended || v_set.ended;
  end if;
  if v_ended <> '{}' then
    v_effects := v_effects || holdfast.resolve_dependencies(v_ended, p_now);
  end if;
  perform holdfast.apply_task_end_effects(v_lanes, v_effects, p_now);
  return v_answers;
end $$;

-- Record the outcomes that have no statement for all tasks, one by one: releases, losses, crashes, cancellations, and
-- stale or repeated outcomes. The caller has locked the jobs. `ended` has the tasks of graphs that ended.
create or replace function holdfast.record_remaining_outcomes(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_outcomes text[], p_bodies jsonb[], p_done bigint[],
    p_now timestamptz,
  out answers text[], out lanes bigint[], out effects jsonb, out ended uuid[])
language plpgsql set search_path = '' as $$
declare
  v_outcome record;
  v_end record;
begin
  answers := array(select 'ok' from unnest(p_ids));
  lanes := '{}';
  effects := '[]';
  ended := '{}';
  for v_outcome in
    select u.* from unnest(p_ids, p_attempts, p_nonces, p_outcomes, p_bodies) with ordinality
      as u (id, attempt, nonce, outcome, body, ord)
    left join holdfast.tasks t on t.id = u.id
    where u.ord <> all (p_done) order by t.job_id is not null, u.id
  loop
    select * into v_end from holdfast.record_attempt_outcome(v_outcome.id, v_outcome.attempt, v_outcome.nonce,
      v_outcome.outcome,
      v_outcome.body, p_now);
    answers[v_outcome.ord] := v_end.answer;
    lanes := lanes || v_end.lane;
    effects := effects || coalesce(v_end.effects, '[]');
    if v_end.ended then
      ended := ended || v_outcome.id;
    end if;
  end loop;
  lanes := array_remove(lanes, null);
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
