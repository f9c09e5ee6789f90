-- Explain: why a task is not running, its failed attempts, and queue metrics. Every result is bounded.

-- Return why a task is not running, or why it ended: {status, queue, type, attempt, reasons: [{reason, ...}]}. Users see
-- the view of access/user_views.sql.
create or replace function holdfast.explain_task(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_explanation jsonb := holdfast.explain_task_for_owner(p_id, v_user);
begin
  return case when v_user is null then v_explanation else holdfast.redact_explanation(v_explanation) end;
end $$;

-- Return the explanation of a task with all details. With p_user, tasks of other owners do not exist.
create or replace function holdfast.explain_task_for_owner(p_id uuid, p_user text) returns jsonb
language plpgsql stable set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_task holdfast.tasks;
  v_lane holdfast.lanes;
  v_ended record;
begin
  select * into v_task from holdfast.tasks t where t.id = p_id and (p_user is null or t.owner = p_user);
  if not found then
    select h.status, h.finished_at, h.error into v_ended from holdfast.history h
    where h.id = p_id and (p_user is null or h.owner = p_user) order by h.finished_at desc limit 1;
    if not found then
      perform holdfast.raise_error('HF002', format('Task %s does not exist.', p_id), 'id',
        'Its transaction may not be committed yet, or its retention has ended.');
    end if;
    return jsonb_build_object('status', v_ended.status, 'reasons', jsonb_build_array(jsonb_build_object(
      'reason', 'ended', 'at', v_ended.finished_at, 'error', v_ended.error)));
  end if;
  select * into strict v_lane from holdfast.lanes l where l.id = v_task.lane_id;
  return jsonb_build_object('status', v_task.status, 'queue', v_lane.queue, 'type', v_lane.type, 'attempt',
    v_task.attempt,
    'reasons', case v_task.status
      when 'waiting' then holdfast.explain_waiting_task(p_id)
      when 'scheduled' then jsonb_build_array(jsonb_build_object('reason', 'scheduled', 'until', v_task.due_at,
        'error', v_task.error))
      when 'ready' then holdfast.explain_ready_task(v_task, v_lane, v_now)
      when 'running' then jsonb_build_array(jsonb_build_object('reason', 'running', 'since', v_task.started_at,
        'lease_until', v_task.lease_until, 'worker',
          (select w.name from holdfast.workers w where w.id = v_task.worker_id)))
      else jsonb_build_array(jsonb_build_object('reason', 'ended', 'at', v_task.finished_at, 'error',
        v_task.error)) end || holdfast.explain_deaths(v_task, v_lane.policy_id));
end $$;

-- Return how often the process of a task died, as a reason of explain_task: charged to the task (`crashes`), or lost
-- without a charge (`losses`, consecutive). Return an empty list if neither happened.
create or replace function holdfast.explain_deaths(p_task holdfast.tasks, p_policy_id bigint) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  if p_task.crashes = 0 and p_task.losses is null then
    return '[]';
  end if;
  return jsonb_build_array(jsonb_build_object('reason', 'deaths', 'crashes', p_task.crashes, 'max_crashes',
    (select k.max_crashes from holdfast.task_policies k where k.id = p_policy_id), 'losses', coalesce(p_task.losses, 0),
    'suspect', p_task.crashes > 0 or p_task.suspect is true,
    'message', (select a.message from holdfast.attempts a where a.task_id = p_task.id
      and a.outcome in ('crashed', 'lost') order by a.attempt desc limit 1)));
end $$;

-- Return the parents that a waiting task waits for, as reasons of explain_task.
create or replace function holdfast.explain_waiting_task(p_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
    select jsonb_agg(jsonb_build_object('reason', 'dependency', 'task', f.name, 'id', f.id, 'status', f.status))
    from (
      select p.name, p.id, p.status from holdfast.dependencies e join holdfast.tasks p on p.id = e.parent_id
      where e.child_id = p_id and not e.satisfied order by p.id limit 20) as f);
end $$;

-- Return why a ready task has not started: a paused queue, no worker, a limit, or tasks ahead of it.
create or replace function holdfast.explain_ready_task(
  p_task holdfast.tasks, p_lane holdfast.lanes, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = '' as $$
declare
  v_reasons jsonb;
begin
  select coalesce(jsonb_agg(f.reason), '[]') into v_reasons from (
    select jsonb_build_object('reason', 'paused', 'since', q.paused_at, 'by', q.paused_by, 'paused_reason',
      q.paused_reason,
      'until', q.paused_until) as reason
    from holdfast.queues q where q.name = p_lane.queue and q.paused_at is not null
    union all
    select jsonb_build_object('reason', 'no_worker', 'type', p_lane.type, 'queue', p_lane.queue)
    where not exists (select from holdfast.workers w where w.stopped_at is null
      and w.seen_at > p_now - interval '2 minutes'
      and p_lane.queue = any (w.queues) and (w.types is null or p_lane.type = any (w.types)))
    union all
    select jsonb_build_object('reason', 'asleep', 'limit', c.rule, 'key', c.key, 'until', c.paused_until)
    from holdfast.limit_counters c where c.id = any (p_lane.limit_ids) and c.paused_until > p_now
    union all
    select jsonb_build_object('reason', 'asleep', 'key', k.key, 'until', k.until)
    from holdfast.paused_limit_keys k where k.key = p_lane.limit_key and k.until > p_now and not exists (
      select from holdfast.limit_counters c where c.id = any (p_lane.limit_ids) and c.paused_until > p_now)
    union all
    select jsonb_build_object('reason', 'limit', 'limit', c.rule, 'key', c.key, 'running', c.running, 'max_running',
      r.max_running,
      'held_by', holdfast.find_tasks_using_limit(c.id))
    from holdfast.limit_counters c join holdfast.limit_rules r on r.name = c.rule
    where c.id = any (p_lane.limit_ids) and c.running >= r.max_running
    union all
    select jsonb_build_object('reason', 'rate', 'limit', c.rule, 'key', c.key, 'until',
      p_now + (1 - k.tokens) / r.rate * interval '1 second')
    from holdfast.limit_counters c join holdfast.limit_rules r on r.name = c.rule
    cross join lateral (select holdfast.compute_available_tokens(
      c.tokens, c.refilled_at, r.rate, r.burst, p_now) as tokens) as k
    where c.id = any (p_lane.limit_ids) and k.tokens < 1
    union all
    select jsonb_build_object('reason', 'expired', 'start_before', p_task.start_before)
      where p_task.start_before <= p_now
  ) as f;
  return case when v_reasons <> '[]' then v_reasons
    else jsonb_build_array(jsonb_build_object('reason', 'queued', 'ahead', (
    select count(*) from (select from holdfast.tasks t where t.lane_id = p_task.lane_id and t.status = 'ready'
      and t.pos >= p_lane.cursor and t.pos < p_task.pos limit 1000) as a), 'since', p_task.due_at)) end;
end $$;

-- Return up to five running tasks that use a limit.
create or replace function holdfast.find_tasks_using_limit(p_limit bigint) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
    select jsonb_agg(f.id) from (
      select t.id from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
      where t.status = 'running' and p_limit = any (l.limit_ids) order by t.lease_until limit 5) as f);
end $$;

-- Return the numbers of ready, running and scheduled tasks, of workers, and the limits in use. Counts are exact up to
-- p_max_rows for each queue and task type, and estimates above, so that a backlog of millions costs no more.
create or replace function holdfast.metrics(p_max_rows integer default 10000) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_queues jsonb;
  v_busy record;
begin
  select coalesce(jsonb_agg(jsonb_build_object('queue', f.queue, 'type', f.type, 'ready', c.ready,
    'ready_exact', c.exact, 'oldest_s', f.oldest_s, 'paused', f.paused) order by f.queue, f.type), '[]') into v_queues
  from (
    select l.queue, l.type, extract(epoch from v_now - min(r.due_at)) as oldest_s,
      bool_or(q.paused_at is not null) as paused
    from holdfast.lanes l left join holdfast.queues q on q.name = l.queue
    left join lateral (
      select t.due_at from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor
      order by t.pos limit 1
    ) as r on true
    group by l.queue, l.type
  ) as f cross join lateral holdfast.count_ready_tasks(f.queue, f.type, p_max_rows) as c;
  select coalesce(sum(b.running), 0)::bigint as running, coalesce(bool_and(b.running_exact), true) as running_exact,
    coalesce(sum(b.scheduled), 0)::bigint as scheduled, coalesce(bool_and(b.scheduled_exact), true) as scheduled_exact
  into v_busy from holdfast.count_busy_tasks(p_max_rows) as b;
  return jsonb_build_object('at', v_now, 'queues', v_queues, 'running', v_busy.running,
    'running_exact', v_busy.running_exact, 'scheduled', v_busy.scheduled, 'scheduled_exact', v_busy.scheduled_exact,
    'workers', (select count(*) from holdfast.workers w where w.stopped_at is null
      and w.seen_at > v_now - interval '2 minutes'),
    'limits', (select coalesce(jsonb_agg(jsonb_build_object('rule', c.rule, 'key', c.key, 'running', c.running,
      'paused_until', c.paused_until)),
      '[]') from (select * from holdfast.limit_counters c where c.running > 0 or c.paused_until > v_now order by c.id
        limit 100) as c));
end $$;

-- List the attempts of a task that did not succeed, oldest first. Users see neither the worker nor the traceback, and
-- the message of an internal error is replaced.
create or replace function holdfast.list_task_attempts(p_task_id uuid)
returns table (attempt integer, outcome text, worker text, started_at timestamptz, ended_at timestamptz,
  error_type text, message text,
  traceback text, fingerprint text)
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  return query
  select a.attempt, a.outcome, (select w.name from holdfast.workers w where w.id = a.worker_id and v_user is null),
    a.started_at, a.ended_at, case when v_user is null then a.error_type else e.view ->> 'type' end,
    case when v_user is null then a.message else e.view ->> 'message' end,
    case when v_user is null then a.traceback end, case when v_user is null then a.fingerprint end
  from holdfast.attempts a
  cross join lateral (select case when v_user is not null and a.error_type <> '' then holdfast.redact_error(
    jsonb_build_object('type', a.error_type, 'message', a.message)) end as view) as e
  where a.task_id = p_task_id and (v_user is null or a.owner = v_user)
  order by a.attempt limit 1000;
end $$;

call holdfast.grant_execute('holdfast_worker', 'explain_task', 'metrics', 'list_task_attempts');
call holdfast.grant_execute('service_role', 'explain_task', 'metrics', 'list_task_attempts');
call holdfast.grant_execute('authenticated', 'explain_task', 'list_task_attempts');
