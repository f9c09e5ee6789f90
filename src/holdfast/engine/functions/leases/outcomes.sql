-- Outcomes: what the outcome of an attempt means to its task.
--
-- Who is charged. `fail` and `reject` were reported by the task's code and count against max_attempts. `crash` counts
-- against max_crashes: the process of the task died while nothing else ran in it. `lost` counts against nothing: a
-- worker, a machine or a connection went away. The task returns at once and is claimed before the rest of its lane;
-- back-off is for failures of the task itself. Only a task that is lost again and again has to wait, and is given up
-- at last. If its process died, the task is a suspect: its next attempt runs alone, in a child process.

-- Apply the outcome of an attempt to its running task, which the caller has locked.
create or replace function holdfast.apply_attempt_outcome(
  p_task holdfast.tasks, p_outcome text, p_body jsonb, p_by_holder boolean, p_now timestamptz,
  out lane bigint, out ended boolean, out effects jsonb)
language plpgsql set search_path = '' as $$
declare
  v_policy holdfast.task_policies;
  v_status text;
begin
  select k.* into strict v_policy from holdfast.lanes l join holdfast.task_policies k on k.id = l.policy_id
    where l.id = p_task.lane_id;
  v_status := holdfast.compute_final_task_status(p_task, v_policy, p_outcome, p_body);
  perform holdfast.insert_attempt(p_task, p_outcome, p_body, p_now);
  if v_status is null then
    perform holdfast.reschedule_task(p_task, v_policy, p_outcome, p_body, p_by_holder, p_now);
  else
    effects := holdfast.end_task(p_task, v_status, case p_outcome when 'succeed' then p_body end,
      case when v_status <> 'succeeded' then holdfast.build_task_error(case when p_outcome = 'lost'
        then 'lost too often' else p_outcome end, p_body) - 'traceback' end, p_by_holder, p_now);
  end if;
  if p_outcome = 'limited' then
    effects := coalesce(effects, '[]') || jsonb_build_array(jsonb_build_object('lane', p_task.lane_id, 'key',
      p_body ->> 'key', 'paused_until',
      p_now + coalesce(holdfast.read_outcome_delay_s(p_body, 'retry_after_s'), 1) * interval '1 second'));
  end if;
  if p_outcome = 'succeed' and p_task.has_staged_files then
    effects := coalesce(effects, '[]') || jsonb_build_array(jsonb_build_object('files', true, 'id', p_task.id,
      'attempt', p_task.attempt,
      'nonce', p_task.nonce));
  end if;
  ended := v_status is not null and p_task.job_id is not null;
  lane := p_task.lane_id;
end $$;

-- Return the final status of a task after an outcome, or null if the task runs again.
create or replace function holdfast.compute_final_task_status(p_task holdfast.tasks, p_policy holdfast.task_policies,
  p_outcome text, p_body jsonb)
returns text
language plpgsql set search_path = '' as $$
declare
  v_max_snoozes constant integer := 10000;
  v_max_losses constant integer := 50;
begin
  case p_outcome
    when 'succeed' then return 'succeeded';
    when 'cancel' then return 'cancelled';
    when 'reject' then return 'failed';
    when 'fail' then
      return case when p_task.failures + 1 >= p_policy.max_attempts or p_body -> 'retry' = 'false' then 'failed' end;
    when 'crash' then return case when p_task.crashes + 1 >= p_policy.max_crashes then 'failed' end;
    when 'snooze', 'limited' then return case when p_task.snoozes >= v_max_snoozes then 'failed' end;
    when 'lost' then return case when coalesce(p_task.losses, 0) + 1 >= v_max_losses then 'failed' end;
    when 'release' then return null;
    else perform holdfast.raise_error('HF004', format('Invalid outcome %s.', quote_nullable(p_outcome)), 'kind',
      'Use succeed, fail, reject, crash, lost, snooze, limited, cancel or release.');
  end case;
  return null;
end $$;

-- Return the error of an attempt as it is stored: cleaned and truncated, so that recording a failure cannot fail.
create or replace function holdfast.build_task_error(p_outcome text, p_body jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  return jsonb_strip_nulls(jsonb_build_object(
    'type', left(case when p_outcome = 'lost too often' then 'LostTooOften' else coalesce(p_body ->> 'type',
      case p_outcome when 'crash' then 'WorkerCrashed' when 'lost' then 'WorkerLost' when 'cancel' then 'Cancelled'
        when 'snooze' then 'TooManySnoozes' else 'Error' end) end, 200),
    'message', holdfast.truncate_middle(case when p_outcome = 'lost too often'
      then 'The task was lost too often: no attempt of many in a row reported an outcome. The last time: ' else '' end
      || coalesce(p_body ->> 'message', p_body ->> 'reason', ''), 4000),
    'traceback', holdfast.truncate_middle(p_body ->> 'traceback', 16000)));
end $$;

-- Record an attempt that failed, crashed, was lost, rejected, cancelled or released.
create or replace function holdfast.insert_attempt(p_task holdfast.tasks, p_outcome text, p_body jsonb,
  p_now timestamptz)
returns void
language plpgsql volatile set search_path = '' as $$
begin
  insert into holdfast.attempts (task_id, job_id, attempt, outcome, worker_id, started_at, ended_at, keep_until, owner,
    error_type, message, traceback, fingerprint)
  select p_task.id, coalesce(p_task.job_id, p_task.id), p_task.attempt,
    case p_outcome when 'crash' then 'crashed' when 'lost' then 'lost' when 'release' then 'released'
      when 'reject' then 'rejected'
      when 'cancel' then 'cancelled' else 'failed' end,
    p_task.worker_id, p_task.started_at, p_now, p_now + interval '30 days', p_task.owner,
    e.error ->> 'type', e.error ->> 'message', e.error ->> 'traceback',
    case when p_outcome <> 'lost' then coalesce(left(p_body ->> 'fingerprint', 200), e.error ->> 'type') end
  from (select case when p_outcome <> 'release' then holdfast.build_task_error(p_outcome, p_body) end as error) as e
  where p_outcome in ('fail', 'reject', 'crash', 'lost', 'cancel', 'release');
end $$;

-- Return the delay before the next attempt: doubled with each failure, capped, with jitter, and never shorter than
-- p_retry_after.
create or replace function holdfast.compute_retry_delay(p_policy holdfast.task_policies, p_failures integer,
  p_retry_after double precision)
returns interval
language plpgsql volatile set search_path = '' as $$
declare
  v_max_doublings constant integer := 60;
  v_max_retry_after_s constant integer := 604800; -- a week
begin
  return greatest(
    least(p_policy.backoff_cap_s, p_policy.backoff_base_s * power(2, least(p_failures, v_max_doublings)))
      * (1 + p_policy.jitter * (2 * random() - 1)),
    least(coalesce(p_retry_after, 0), v_max_retry_after_s)) * interval '1 second';
end $$;

-- Return a delay of an outcome in seconds. An invalid value counts as missing, because recording an outcome must not
-- fail.
create or replace function holdfast.read_outcome_delay_s(p_body jsonb, p_field text) returns double precision
language plpgsql immutable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_body -> p_field) = 'number'
    then least(greatest((p_body ->> p_field)::numeric, 0), 315360000) end;
end $$;

-- Make a task run again: at once and before the rest of its lane after a release or a loss, later after a failure or
-- a snooze.
create or replace function holdfast.reschedule_task(
  p_task holdfast.tasks, p_policy holdfast.task_policies, p_outcome text, p_body jsonb, p_by_holder boolean,
    p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_max_prompt_returns constant integer := 9; -- later losses in a row wait, longer each time
  v_losses integer := case p_outcome when 'lost' then coalesce(p_task.losses, 0) + 1 when 'release' then p_task.losses
    end;
  v_requested_s double precision := holdfast.read_outcome_delay_s(p_body, case when p_outcome = 'snooze' then 'delay_s'
    else 'retry_after_s' end);
  v_delay interval := case p_outcome
    when 'fail' then holdfast.compute_retry_delay(p_policy, p_task.failures, v_requested_s)
    when 'crash' then holdfast.compute_retry_delay(p_policy, p_task.crashes, null)
    when 'lost' then case when v_losses > v_max_prompt_returns
      then holdfast.compute_retry_delay(p_policy, v_losses - v_max_prompt_returns - 1, null) else interval '0' end
    when 'snooze' then coalesce(v_requested_s, 0) * interval '1 second'
    when 'limited' then coalesce(v_requested_s, 1) * interval '1 second'
    else interval '0' end;
  v_lane_id bigint := holdfast.find_or_create_sibling_lane(p_task.lane_id,
    p_outcome in ('lost', 'release') and v_delay = interval '0');
begin
  update holdfast.tasks t set
    lane_id = v_lane_id,
    status = case when v_delay > interval '0' then 'scheduled' else 'ready' end,
    due_at = p_now + v_delay,
    pos = case when v_delay > interval '0' then t.pos else nextval('holdfast.task_positions') end,
    failures = t.failures + (p_outcome = 'fail')::int,
    crashes = t.crashes + (p_outcome = 'crash')::int,
    losses = v_losses,
    suspect = case p_outcome when 'lost' then nullif(t.suspect is true or p_body -> 'suspect' = 'true' or v_losses > 1,
      false) when 'release' then t.suspect end,
    snoozes = case when p_outcome in ('snooze', 'limited') then coalesce(t.snoozes, 0) + 1 else t.snoozes end,
    error = case when p_outcome in ('fail', 'crash') then holdfast.build_task_error(p_outcome, p_body) - 'traceback'
      else t.error end,
    nonce = case when p_by_holder then t.nonce end, outcome = p_outcome, lease_until = null
  where t.id = p_task.id;
  if v_delay = interval '0' then
    perform holdfast.wake_workers(array[v_lane_id]);
  end if;
end $$;

-- End one locked task. A single task moves to the history; a task of a graph stays until its job is archived.
-- `p_by_holder` keeps the nonce, so that a repeated outcome of the holder is recognized; otherwise the lease is void.
create or replace function holdfast.end_task(
  p_task holdfast.tasks, p_status text, p_output jsonb, p_error jsonb, p_by_holder boolean, p_now timestamptz)
    returns jsonb
language plpgsql set search_path = '' as $$
begin
  update holdfast.tasks t set status = p_status, output = p_output, error = p_error, finished_at = p_now,
    nonce = case when p_by_holder then t.nonce end, failures = t.failures + (p_by_holder and p_status = 'failed')::int,
    event_seq = case when t.job_id is null and (t.owner is not null or t.event_seq is not null)
      then coalesce(t.event_seq, 0) + 1 end,
    lease_until = null
  where t.id = p_task.id;
  if p_task.job_id is not null then
    return '[]';
  end if;
  perform holdfast.archive_tasks(array[p_task.id], null);
  return holdfast.emit_task_end_events(jsonb_build_array(jsonb_build_object('id', p_task.id, 'owner', p_task.owner,
    'event_seq',
    p_task.event_seq, 'unique_key', p_task.unique_key, 'batch_id', p_task.batch_id, 'status', p_status, 'percent',
      p_task.percent)), p_now);
end $$;
