-- Finish: what became of an attempt.
--
-- Outcomes are succeed (body: the output), fail, reject and crash (body: {type, message, traceback, retry_after_s,
-- fingerprint}), snooze ({delay_s}), limited ({retry_after_s}), cancel ({reason}) and release (no body). Each is
-- accepted once, from the holder of the lease; sent again by the same holder it is answered alike.
--
-- Rows are found by primary key only. The test of the status is written so that it matches no partial index:
-- the planner would walk that index and the dead entries an old snapshot keeps in it.

create or replace function holdfast.finish(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_kinds text[], p_bodies jsonb[], p_now timestamptz) returns text[]
language plpgsql set search_path = '' as $$
declare
  v_singles record;
  v_others record;
begin
  select * into v_singles from holdfast.succeed_singles(p_ids, p_attempts, p_nonces, p_kinds, p_bodies, p_now);
  perform holdfast.announce_ended(p_ids);
  if cardinality(v_singles.done) = cardinality(p_ids) then
    perform holdfast.after_ended(v_singles.lanes, v_singles.after, p_now);
    return null;
  end if;
  select * into v_others from holdfast.finish_others(p_ids, p_attempts, p_nonces, p_kinds, p_bodies, v_singles.done, p_now);
  perform holdfast.after_ended(v_singles.lanes || v_others.lanes, v_singles.after || v_others.after, p_now);
  return v_others.answers;
end $$;

-- What must come last in the lock order: limits, then batches, then keys, then files.
create or replace function holdfast.after_ended(p_lanes bigint[], p_after jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
begin
  if cardinality(p_lanes) > 0 then
    perform holdfast.count_ended(p_lanes);
  end if;
  if p_after <> '[]' then
    perform holdfast.rest_keys(p_after);
    perform holdfast.count_members(p_after, p_now);
    delete from holdfast.keys k
    using jsonb_to_recordset(p_after) as a (id uuid, owner text, unique_key text)
    where k.scope = 'unique:' || coalesce(a.owner, '') and k.key = a.unique_key and k.job_id = a.id;
    if p_after @> '[{"files": true}]' then
      perform holdfast.show_artifacts(p_after, p_now);
    end if;
  end if;
end $$;

-- Keys that were told to rest: the one that was named, else the task's own.
create or replace function holdfast.rest_keys(p_after jsonb) returns void
language plpgsql set search_path = '' as $$
begin
  with told as materialized (
    select coalesce(a.key, l.limit_key) as key, l.limit_ids, max(a.asleep_until) as until
    from jsonb_to_recordset(p_after) as a (lane bigint, key text, asleep_until timestamptz)
    join holdfast.lanes l on l.id = a.lane
    where octet_length(coalesce(a.key, l.limit_key)) between 1 and 1000
    group by 1, 2 order by 1
  ), counters as (
    -- Only those of the task's own lane, which are locked already.
    update holdfast.limits i set asleep_until = greatest(i.asleep_until, t.until) from told t where i.id = any (t.limit_ids) and i.key = t.key
  )
  insert into holdfast.resting_keys as k (key, until) select t.key, max(t.until) from told t group by 1 order by 1
  on conflict (key) do update set until = greatest(k.until, excluded.until);
end $$;

-- The event of jobs of one task that ended; those that nobody can watch have none. Takes and answers what after_ended
-- reads: [{id, owner, event_seq, unique_key, batch_id, status, percent}].
create or replace function holdfast.tell_ended(p_after jsonb, p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
begin
  insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
  select a.id, coalesce(a.event_seq, 0) + 1, p_now, p_now + interval '7 days', a.owner, 'job',
    jsonb_build_object('status', a.status, 'percent', case when a.status = 'succeeded' then 100 else a.percent end)
  from jsonb_to_recordset(p_after) as a (id uuid, owner text, event_seq bigint, status text, percent real)
  where a.owner is not null or a.event_seq is not null;
  return p_after;
end $$;

-- Jobs of one task that succeeded, all at once: out of the hot table, into the history.
create or replace function holdfast.succeed_singles(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_kinds text[], p_bodies jsonb[], p_now timestamptz,
  out done bigint[], out lanes bigint[], out after jsonb)
language plpgsql set search_path = '' set jit = off set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  with given as materialized (
    select u.id, u.attempt, u.nonce, u.output, u.ord
    from unnest(p_ids, p_attempts, p_nonces, p_kinds, p_bodies) with ordinality as u (id, attempt, nonce, kind, output, ord)
    where u.kind = 'succeed' order by u.id
  ), gone as (
    delete from holdfast.tasks t using given g
    where t.id = g.id and t.attempt = g.attempt and t.nonce = g.nonce and t.status || '' = 'running' and t.job_id is null
    returning t.*, g.output as result, g.ord
  ), kept as (
    insert into holdfast.history (id, kind_id, nonce, worker_id, due_at, started_at, finished_at, keep_until, attempt,
      failures, crashes, priority, status, args, output, name, owner, limit_key, phase, message, event_seq, labels, batch_id)
    select g.id, l.kind_id, g.nonce, g.worker_id, g.due_at, g.started_at, p_now,
      p_now + coalesce(q.keep_s * interval '1 second', interval '1 day'), g.attempt, g.failures, g.crashes, l.priority,
      'succeeded', g.args, g.result, g.name, g.owner, l.limit_key, g.phase, g.message,
      case when g.owner is not null or g.event_seq is not null then coalesce(g.event_seq, 0) + 1 end, g.labels, g.batch_id
    from gone g join holdfast.lanes l on l.id = g.lane_id left join holdfast.queues q on q.name = l.queue
  )
  select coalesce(array_agg(g.ord), '{}'), array_agg(g.lane_id),
    jsonb_agg(jsonb_build_object('id', g.id, 'owner', g.owner, 'event_seq', g.event_seq, 'unique_key', g.unique_key,
        'batch_id', g.batch_id, 'status', 'succeeded', 'files', g.files, 'attempt', g.attempt, 'nonce', g.nonce))
      filter (where coalesce(g.owner, g.unique_key) is not null or g.event_seq is not null or g.batch_id is not null or g.files)
  into done, lanes, after from gone g;
  -- Asked after the tasks are locked: a rule that is made meanwhile waits for us, or we waited for it.
  if not exists (select from holdfast.limit_rules) then
    lanes := null;
  end if;
  after := case when after is null then '[]' else holdfast.tell_ended(after, p_now) end;
end $$;

create or replace function holdfast.keep_for(p_status text, p_queue text) returns interval
language plpgsql stable set search_path = '' as $$
begin
  return (
  select coalesce((
    select (case when p_status = 'failed' then q.keep_failed_s else q.keep_s end) * interval '1 second'
    from holdfast.queues q where q.name = p_queue), holdfast.keep_default(p_status)));
end $$;

-- Whatever the fast path did not take: failures, snoozes, tasks of graphs, and stale or repeated outcomes.
create or replace function holdfast.finish_others(
  p_ids uuid[], p_attempts integer[], p_nonces bigint[], p_kinds text[], p_bodies jsonb[], p_done bigint[], p_now timestamptz,
  out answers text[], out lanes bigint[], out after jsonb)
language plpgsql set search_path = '' as $$
declare
  v_one record;
  v_end record;
  v_jobs uuid[] := array(select distinct t.job_id from holdfast.tasks t where t.id = any (p_ids) and t.job_id is not null);
  v_ended uuid[] := '{}';
begin
  perform pg_current_xact_id();
  answers := array(select 'ok' from unnest(p_ids));
  lanes := '{}';
  after := '[]';
  for v_one in
    select u.*, t.job_id from unnest(p_ids, p_attempts, p_nonces, p_kinds, p_bodies) with ordinality
      as u (id, attempt, nonce, kind, body, ord)
    left join holdfast.tasks t on t.id = u.id
    where u.ord <> all (p_done) order by t.job_id is not null, u.id
  loop
    if v_one.job_id is not null and v_jobs is not null then
      perform from holdfast.jobs j where j.id = any (v_jobs) order by j.id for update;
      v_jobs := null;
    end if;
    select * into v_end from holdfast.end_attempt(v_one.id, v_one.attempt, v_one.nonce, v_one.kind, v_one.body, p_now);
    answers[v_one.ord] := v_end.answer;
    lanes := lanes || v_end.lane;
    after := after || coalesce(v_end.after, '[]');
    if v_end.ended then
      v_ended := v_ended || v_one.id;
    end if;
  end loop;
  lanes := array_remove(lanes, null);
  if v_ended <> '{}' then
    after := after || holdfast.settle(v_ended, p_now);
  end if;
  answers := case when 'stale' = any (answers) then answers end;
end $$;

-- One outcome from a holder. `lane` is set when a lease ended by it, `ended` for a task of a graph whose job must be told.
create or replace function holdfast.end_attempt(
  p_id uuid, p_attempt integer, p_nonce bigint, p_kind text, p_body jsonb, p_now timestamptz,
  out answer text, out lane bigint, out ended boolean, out after jsonb)
language plpgsql set search_path = '' as $$
declare
  v_task holdfast.tasks;
begin
  answer := 'ok';
  select * into v_task from holdfast.tasks t where t.id = p_id and t.attempt = p_attempt and t.nonce = p_nonce for update;
  if not found then
    if not exists (select from holdfast.history h where h.id = p_id and h.attempt = p_attempt and h.nonce = p_nonce
      and holdfast.repeats(p_kind, h.status, null)) then
      answer := 'stale';
    end if;
  elsif v_task.status = 'running' then
    select o.lane, o.ended, o.after into lane, ended, after from holdfast.apply_outcome(v_task, p_kind, p_body, true, p_now) as o;
  elsif not holdfast.repeats(p_kind, v_task.status, v_task.outcome) then
    answer := 'stale';
  end if;
end $$;

-- Whether an outcome says again what the same lease said before.
create or replace function holdfast.repeats(p_kind text, p_status text, p_outcome text) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return case p_status when 'succeeded' then p_kind = 'succeed' when 'cancelled' then p_kind = 'cancel'
    when 'failed' then p_kind in ('fail', 'reject', 'crash') else p_kind is not distinct from p_outcome end;
end $$;

-- The outcome of a running task that the caller has locked.
create or replace function holdfast.apply_outcome(
  p_task holdfast.tasks, p_outcome text, p_body jsonb, p_by_holder boolean, p_now timestamptz,
  out lane bigint, out ended boolean, out after jsonb)
language plpgsql set search_path = '' as $$
declare
  v_kind holdfast.kinds;
  v_status text;
begin
  select k.* into strict v_kind from holdfast.lanes l join holdfast.kinds k on k.id = l.kind_id where l.id = p_task.lane_id;
  v_status := holdfast.end_status(p_task, v_kind, p_outcome, p_body);
  perform holdfast.write_attempt(p_task, p_outcome, p_body, p_now);
  if v_status is null then
    perform holdfast.put_back(p_task, v_kind, p_outcome, p_body, p_by_holder, p_now);
  else
    after := holdfast.end_task(p_task, v_status, case p_outcome when 'succeed' then p_body end,
      case when v_status <> 'succeeded' then holdfast.error_in(p_outcome, p_body) end, p_by_holder, p_now);
  end if;
  if p_outcome = 'limited' then
    after := coalesce(after, '[]') || jsonb_build_array(jsonb_build_object('lane', p_task.lane_id, 'key', p_body ->> 'key', 'asleep_until',
      p_now + coalesce(holdfast.seconds_in(p_body, 'retry_after_s'), 1) * interval '1 second'));
  end if;
  if p_outcome = 'succeed' and p_task.files then
    after := coalesce(after, '[]') || jsonb_build_array(jsonb_build_object('files', true, 'id', p_task.id, 'attempt', p_task.attempt,
      'nonce', p_task.nonce));
  end if;
  ended := v_status is not null and p_task.job_id is not null;
  lane := p_task.lane_id;
end $$;

-- The final state that an outcome leads to; null: the task is tried again.
create or replace function holdfast.end_status(p_task holdfast.tasks, p_kind holdfast.kinds, p_outcome text, p_body jsonb)
returns text
language plpgsql set search_path = '' as $$
begin
  case p_outcome
    when 'succeed' then return 'succeeded';
    when 'cancel' then return 'cancelled';
    when 'reject' then return 'failed';
    when 'fail' then
      return case when p_task.failures + 1 >= p_kind.attempts or p_body -> 'retry' = 'false' then 'failed' end;
    when 'crash' then return case when p_task.crashes + 1 >= p_kind.crashes then 'failed' end;
    when 'snooze', 'limited' then return case when p_task.snoozes >= 10000 then 'failed' end;
    when 'release' then return null;
    else perform holdfast.refuse('HF004', format('%s is no outcome.', quote_nullable(p_outcome)), 'kind',
      'Use succeed, fail, reject, crash, snooze, limited, cancel or release.');
  end case;
  return null;
end $$;

-- An error as it is kept: cleaned and bounded, so that recording a failure cannot fail.
create or replace function holdfast.error_in(p_kind text, p_body jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select jsonb_strip_nulls(jsonb_build_object(
    'type', left(coalesce(p_body ->> 'type', case p_kind when 'crash' then 'WorkerCrashed'
      when 'cancel' then 'Cancelled' when 'snooze' then 'TooManySnoozes' else 'Error' end), 200),
    'message', holdfast.bounded(coalesce(p_body ->> 'message', p_body ->> 'reason', ''), 4000),
    'traceback', holdfast.bounded(p_body ->> 'traceback', 16000))));
end $$;

create or replace function holdfast.bounded(p_text text, p_most integer) returns text
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select case when length(p_text) <= p_most then p_text
    else left(p_text, p_most / 2) || ' [...] ' || right(p_text, p_most / 2) end);
end $$;

create or replace function holdfast.write_attempt(p_task holdfast.tasks, p_kind text, p_body jsonb, p_now timestamptz)
returns void
language plpgsql volatile set search_path = '' as $$
begin
  insert into holdfast.attempts (task_id, job_id, attempt, outcome, worker_id, started_at, ended_at, keep_until, owner,
    error_type, message, traceback, fingerprint)
  select p_task.id, coalesce(p_task.job_id, p_task.id), p_task.attempt,
    case p_kind when 'crash' then 'crashed' when 'release' then 'released' when 'reject' then 'rejected'
      when 'cancel' then 'cancelled' else 'failed' end,
    p_task.worker_id, p_task.started_at, p_now, p_now + interval '30 days', p_task.owner,
    e.error ->> 'type', e.error ->> 'message', e.error ->> 'traceback',
    coalesce(left(p_body ->> 'fingerprint', 200), e.error ->> 'type')
  from (select case when p_kind <> 'release' then holdfast.error_in(p_kind, p_body) end as error) as e
  where p_kind in ('fail', 'reject', 'crash', 'cancel', 'release');
end $$;

-- The wait before the next attempt: doubling, capped, jittered; never shorter than the other side asked for.
create or replace function holdfast.back_off(p_kind holdfast.kinds, p_failures integer, p_retry_after double precision)
returns interval
language plpgsql volatile set search_path = '' as $$
begin
  return (
  select greatest(
    least(p_kind.cap_s, p_kind.base_s * power(2, least(p_failures, 60)))
      * (1 + p_kind.jitter * (2 * random() - 1)),
    least(coalesce(p_retry_after, 0), 604800)) * interval '1 second');
end $$;

-- The wait that an outcome asks for, in seconds. Nonsense counts as not asked: recording an outcome must not fail.
create or replace function holdfast.seconds_in(p_body jsonb, p_field text) returns double precision
language plpgsql immutable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_body -> p_field) = 'number'
    then least(greatest((p_body ->> p_field)::numeric, 0), 315360000) end;
end $$;

-- Back to work: at once after a release, later after a failure or a snooze.
create or replace function holdfast.put_back(
  p_task holdfast.tasks, p_kind holdfast.kinds, p_outcome text, p_body jsonb, p_by_holder boolean, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_asked double precision := holdfast.seconds_in(p_body, case when p_outcome = 'snooze' then 'delay_s' else 'retry_after_s' end);
  v_wait interval := case p_outcome
    when 'fail' then holdfast.back_off(p_kind, p_task.failures, v_asked)
    when 'crash' then holdfast.back_off(p_kind, p_task.crashes, null)
    when 'snooze' then coalesce(v_asked, 0) * interval '1 second'
    when 'limited' then coalesce(v_asked, 1) * interval '1 second'
    else interval '0' end;
begin
  update holdfast.tasks t set
    status = case when v_wait > interval '0' then 'scheduled' else 'ready' end,
    due_at = p_now + v_wait,
    pos = case when v_wait > interval '0' then t.pos else nextval('holdfast.positions') end,
    failures = t.failures + (p_outcome = 'fail')::int,
    crashes = t.crashes + (p_outcome = 'crash')::int,
    snoozes = case when p_outcome in ('snooze', 'limited') then coalesce(t.snoozes, 0) + 1 else t.snoozes end,
    error = case when p_outcome in ('fail', 'crash') then holdfast.error_in(p_outcome, p_body) - 'traceback' else t.error end,
    nonce = case when p_by_holder then t.nonce end, outcome = p_outcome, lease_until = null
  where t.id = p_task.id;
  if v_wait = interval '0' then
    perform holdfast.wake(array[p_task.lane_id]);
  end if;
end $$;

-- The end of one locked task. A single one moves to the history; one of a graph stays until its job is archived.
-- `p_by_holder` keeps the nonce, so that the holder's repeated answer is known; else the lease is void.
create or replace function holdfast.end_task(
  p_task holdfast.tasks, p_status text, p_output jsonb, p_error jsonb, p_by_holder boolean, p_now timestamptz) returns jsonb
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
  return holdfast.tell_ended(jsonb_build_array(jsonb_build_object('id', p_task.id, 'owner', p_task.owner, 'event_seq',
    p_task.event_seq, 'unique_key', p_task.unique_key, 'batch_id', p_task.batch_id, 'status', p_status, 'percent', p_task.percent)), p_now);
end $$;

-- Ended tasks into the history. `p_status` is the job's when its tasks follow it, so that all are kept alike.
create or replace function holdfast.archive_tasks(p_ids uuid[], p_status text) returns void
language plpgsql volatile set search_path = '' set plan_cache_mode = force_generic_plan set jit = off as $$
begin
  with gone as (
    delete from holdfast.tasks t where t.id = any (p_ids) and t.status || '' in ('succeeded', 'failed', 'cancelled') returning t.*
  )
  insert into holdfast.history (id, job_id, kind_id, nonce, worker_id, due_at, started_at, finished_at, keep_until, attempt,
    failures, crashes, priority, status, args, output, error, name, owner, limit_key, weight, percent, phase, message,
    event_seq, labels, batch_id)
  select g.id, g.job_id, l.kind_id, g.nonce, g.worker_id, g.due_at, g.started_at, g.finished_at,
    greatest(g.finished_at, holdfast.now()) + holdfast.keep_for(coalesce(p_status, g.status), l.queue), g.attempt,
    g.failures, g.crashes, l.priority, g.status, g.args, g.output, g.error, g.name, g.owner, l.limit_key, g.weight, g.percent,
    g.phase, g.message, g.event_seq, g.labels, g.batch_id
  from gone g join holdfast.lanes l on l.id = g.lane_id;
end $$;
