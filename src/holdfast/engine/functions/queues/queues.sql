-- Operate: what people at a terminal ask. Queues of tasks, workers, limits as they are now, and how a job was submitted.
-- Every answer is bounded: counts stop at p_most.

-- Every queue that has or had tasks, or that somebody paused or tuned. `ready` stops at p_most in each; `ready_exact` says
-- whether it did not. The head of each lane is its oldest.
create or replace function holdfast.task_queues(p_queue text default null, p_most integer default 10000) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  with names as (
    select l.queue as name from holdfast.lanes l where p_queue is null or l.queue = p_queue
    union select q.name from holdfast.queues q where p_queue is null or q.name = p_queue
  ), ready as (
    select n.name as queue, c.n, o.oldest_s
    from names n
    cross join lateral (
      select count(*) as n from (
        select from holdfast.lanes l
        cross join lateral (
          select from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor
          order by t.pos limit p_most + 1) as t
        where l.queue = n.name limit p_most + 1) as t
    ) as c
    cross join lateral (
      select extract(epoch from v_now - min(t.due_at))::double precision as oldest_s
      from holdfast.lanes l
      cross join lateral (
        select t.due_at from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor
        order by t.pos limit 1) as t
      where l.queue = n.name
    ) as o
  ), running as (
    select l.queue, count(*) as n from (select t.lane_id from holdfast.tasks t where t.status = 'running' limit p_most) as t
    join holdfast.lanes l on l.id = t.lane_id group by l.queue
  ), scheduled as (
    select l.queue, count(*) as n
    from (select t.lane_id from holdfast.tasks t where t.status = 'scheduled' order by t.due_at limit p_most) as t
    join holdfast.lanes l on l.id = t.lane_id group by l.queue
  )
  select jsonb_build_object('queue', n.name, 'ready', least(r.n, p_most), 'ready_exact', r.n <= p_most, 'running', coalesce(u.n, 0), 'scheduled', coalesce(s.n, 0),
    'oldest_s', r.oldest_s, 'types', (select array_agg(distinct l.type) from holdfast.lanes l where l.queue = n.name),
    'workers', (select count(*) from holdfast.workers w where w.left_at is null and w.seen_at > v_now - interval '2 minutes' and n.name = any (w.queues)),
    'limits', (select array_agg(i.name order by i.name) from holdfast.limit_rules i where i.queue = n.name))
    || coalesce(to_jsonb(q) - 'name', '{}')
  from names n
  join ready r on r.queue = n.name left join running u on u.queue = n.name left join scheduled s on s.queue = n.name
  left join holdfast.queues q on q.name = n.name
  order by n.name;
end $$;

-- How many workers of p_per_worker slots a queue could use: never null, 0 for one that is empty or unknown. One more for
-- each minute that the oldest has waited, up to twice as many. What a paused queue has waiting does not count.
create or replace function holdfast.desired_workers(p_queue text, p_per_worker integer default 8, p_most integer default 10000)
returns integer
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_queue jsonb := (select q from holdfast.task_queues(p_queue, p_most) as q);
  v_ready bigint := case when v_queue ->> 'paused_at' is null then coalesce((v_queue ->> 'ready')::bigint, 0) else 0 end;
  v_base integer;
begin
  if p_per_worker is null or p_per_worker < 1 then
    perform holdfast.refuse('HF004', format('per_worker must be at least 1, got %s.', p_per_worker), 'per_worker');
  end if;
  v_base := ceil((v_ready + coalesce((v_queue ->> 'running')::bigint, 0)) / p_per_worker::numeric);
  return v_base + case when v_ready = 0 then 0
    else least(v_base, floor(coalesce((v_queue ->> 'oldest_s')::numeric, 0) / 60)) end;
end $$;

-- Workers seen within p_within_s. Quiet: no beat for a minute; lost: for two, by when others take its leases over.
create or replace function holdfast.list_workers(p_within_s double precision default 3600) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  with running as (
    select t.worker_id, count(*) as n from (select t.worker_id from holdfast.tasks t where t.status = 'running' limit 100000) as t
    group by t.worker_id
  )
  select to_jsonb(w) || jsonb_build_object('running', coalesce(r.n, 0),
    'state', case when w.lost then 'lost' when w.left_at is not null then 'stopped'
      when w.seen_at <= v_now - interval '2 minutes' then 'lost' when w.seen_at <= v_now - interval '1 minute' then 'quiet'
      when w.command is not null then 'draining' else 'live' end,
    'seen_s', extract(epoch from v_now - w.seen_at)::double precision)
  from holdfast.workers w left join running r on r.worker_id = w.id
  where w.seen_at > v_now - p_within_s * interval '1 second' or r.n > 0
  order by w.name limit 10000;
end $$;

-- What a worker runs now, the longest first.
create or replace function holdfast.worker_tasks(p_worker text, p_limit integer default 100) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
begin
  return query
  select jsonb_build_object('task', t.id, 'job', coalesce(t.job_id, t.id), 'name', coalesce(t.name, l.type), 'type', l.type,
    'queue', l.queue, 'attempt', t.attempt, 'started_at', t.started_at, 'lease_until', t.lease_until,
    'deadline', t.started_at + k.timeout_s * interval '1 second', 'percent', t.percent, 'phase', t.phase, 'message', t.message)
  from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id join holdfast.kinds k on k.id = l.kind_id
  where t.status = 'running' and t.worker_id = (select w.id from holdfast.workers w where w.name = p_worker)
  order by t.started_at limit least(greatest(p_limit, 1), 1000);
end $$;

-- Rules with what is in use: the sum over their keys, and the fullest of them.
create or replace function holdfast.list_limits() returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  select to_jsonb(r) || jsonb_build_object('running', coalesce(c.running, 0), 'keys', coalesce(c.keys, 0),
    'asleep_until', c.asleep_until, 'fullest', c.fullest)
  from holdfast.limit_rules r
  left join lateral (
    select sum(i.running)::bigint as running, count(*) as keys,
      max(i.asleep_until) filter (where i.asleep_until > v_now) as asleep_until,
      (array_agg(i.key order by i.running desc) filter (where i.running > 0 and i.key is not null))[1:5] as fullest
    from holdfast.limits i where i.rule = r.name
  ) as c on true
  order by r.name;
end $$;

-- Jobs whose id begins like this: for people who copy the first part of it.
create or replace function holdfast.jobs_like(p_start text, p_limit integer default 10) returns setof uuid
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_user text := holdfast.calling_user();
  v_hex text := replace(lower(p_start), '-', '');
  v_from uuid;
  v_to uuid;
begin
  if v_hex !~ '^[0-9a-f]{4,32}$' then
    return;
  end if;
  v_from := rpad(v_hex, 32, '0')::uuid;
  v_to := rpad(v_hex, 32, 'f')::uuid;
  return query
  select distinct f.id from (
    (select j.id from holdfast.jobs j where j.id between v_from and v_to and (v_user is null or j.owner = v_user) order by j.id limit p_limit)
    union all
    (select t.id from holdfast.tasks t where t.id between v_from and v_to and t.job_id is null
      and (v_user is null or t.owner = v_user) order by t.id limit p_limit)
    union all
    (select h.id from holdfast.history h where h.id between v_from and v_to and h.job_id is null
      and (v_user is null or h.owner = v_user) order by h.id limit p_limit)
  ) as f order by f.id limit p_limit;
end $$;

-- A job as `submit` takes it: to run it again as a new one, changed or not. Without its keys and times, which belong to
-- the old one, and without tasks that other tasks added, which will do so again: those are younger than the job.
create or replace function holdfast.submission(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_user text := holdfast.calling_user();
  v_job holdfast.jobs;
  v_tasks jsonb;
begin
  if not holdfast.may_see(p_id, v_user) then
    perform holdfast.refuse('HF002', format('There is no job %s.', p_id), 'id');
  end if;
  select * into v_job from holdfast.jobs j where j.id = p_id;
  if not found or exists (select from holdfast.all_tasks t where t.id = p_id) then
    return holdfast.task_submission(p_id) || jsonb_strip_nulls(jsonb_build_object(
      'owner', coalesce(v_job.owner, (select t.owner from holdfast.all_tasks t where t.id = p_id limit 1)),
      'labels', coalesce(v_job.labels, (select t.labels from holdfast.all_tasks t where t.id = p_id limit 1))));
  end if;
  select jsonb_agg(holdfast.task_submission(t.id) || jsonb_strip_nulls(jsonb_build_object('name', t.name, 'weight', t.weight,
    'after', (select jsonb_agg(jsonb_build_object('name', p.name, 'on_failure', e.on_failure))
      from holdfast.edges e join holdfast.all_tasks p on p.id = e.parent_id where e.child_id = t.id))) order by t.id) into v_tasks
  from holdfast.all_tasks t
  where t.id in (select i.id from holdfast.tasks i where i.job_id = p_id union all select h.id from holdfast.history h where h.job_id = p_id)
    and holdfast.id_time(t.id) <= holdfast.id_time(p_id) + interval '1 millisecond' + v_job.total * interval '1 microsecond';
  return jsonb_strip_nulls(jsonb_build_object('type', v_job.type, 'owner', v_job.owner,
    'partial', nullif(v_job.partial, false), 'labels', v_job.labels)) || jsonb_build_object('params', v_job.params, 'tasks', v_tasks);
end $$;

create or replace function holdfast.task_submission(p_id uuid) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
  select jsonb_strip_nulls(jsonb_build_object('type', k.type, 'queue', k.queue, 'priority', nullif(f.priority, 0),
    'limit_key', f.limit_key)) || k.policy || jsonb_build_object('args', f.args)
  from (
    select l.kind_id, l.priority, l.limit_key, t.args from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id where t.id = p_id
    union all
    select h.kind_id, h.priority, h.limit_key, h.args from holdfast.history h where h.id = p_id
  ) as f join holdfast.kinds k on k.id = f.kind_id limit 1);
end $$;

call holdfast.allow('holdfast_worker', 'task_queues', 'desired_workers', 'list_workers', 'worker_tasks', 'list_limits', 'jobs_like', 'submission');
call holdfast.allow('service_role', 'task_queues', 'desired_workers', 'list_workers', 'worker_tasks', 'list_limits', 'jobs_like', 'submission');
call holdfast.allow('authenticated', 'jobs_like', 'submission');
