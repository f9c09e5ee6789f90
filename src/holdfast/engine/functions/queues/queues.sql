-- Task queues: list them, pause and resume them, and set their options. counts.sql counts their tasks.

-- List every queue that has or had tasks, or was paused or configured. `ready`, `running` and `scheduled` are exact up to
-- p_max_rows and estimates above; `ready_exact`, `running_exact` and `scheduled_exact` tell which. The first ready task
-- of each lane is its oldest.
create or replace function holdfast.list_task_queues(p_queue text default null, p_max_rows integer default 10000)
  returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return query
  with names as (
    select l.queue as name from holdfast.lanes l where p_queue is null or l.queue = p_queue
    union select q.name from holdfast.queues q where p_queue is null or q.name = p_queue
  ), ready as (
    select n.name as queue, c.ready, c.exact, o.oldest_s
    from names n
    cross join lateral holdfast.count_ready_tasks(n.name, null, p_max_rows) as c
    cross join lateral (
      select extract(epoch from v_now - min(t.due_at))::double precision as oldest_s
      from holdfast.lanes l
      cross join lateral (
        select t.due_at from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor
        order by t.pos limit 1) as t
      where l.queue = n.name
    ) as o
  )
  select jsonb_build_object('queue', n.name, 'ready', r.ready, 'ready_exact', r.exact,
    'running', coalesce(b.running, 0), 'running_exact', coalesce(b.running_exact, true),
    'scheduled', coalesce(b.scheduled, 0), 'scheduled_exact', coalesce(b.scheduled_exact, true),
    'oldest_s', r.oldest_s, 'types', (select array_agg(distinct l.type) from holdfast.lanes l where l.queue = n.name),
    'workers', (select count(*) from holdfast.workers w where w.stopped_at is null
      and w.seen_at > v_now - interval '2 minutes' and n.name = any (w.queues)),
    'limits', (select array_agg(i.name order by i.name) from holdfast.limit_rules i where i.queue = n.name))
    || coalesce(to_jsonb(q) - 'name', '{}')
  from names n
  join ready r on r.queue = n.name left join holdfast.count_busy_tasks(p_max_rows) as b on b.queue = n.name
  left join holdfast.queues q on q.name = n.name
  order by n.name;
end $$;

-- Return how many ready tasks of a queue its limits let start now, counted up to p_max_rows. Tokens that a rate gains in
-- the next 30 seconds count too: that is how often autoscalers look. A task with several limits counts against the
-- tightest one per key and the tightest shared one.
create or replace function holdfast.count_claimable_tasks(p_queue text, p_max_rows integer, p_now timestamptz)
  returns bigint
language sql stable set search_path = '' set jit = off as $$
  with ready as (
    select l.id, l.type, l.limit_key, count(*) as n
    from holdfast.lanes l
    cross join lateral (
      select from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor
      order by t.pos limit p_max_rows) as t
    where l.queue = p_queue and not exists (
      select from holdfast.paused_limit_keys p where p.key = l.limit_key and p.until > p_now)
    group by l.id limit p_max_rows
  ), lane_limits as (
    select e.id, r.name as rule, r.per_key, case when r.per_key then e.limit_key end as key,
      greatest(least(r.max_running - coalesce(c.running, 0),
        floor(holdfast.compute_available_tokens(c.tokens, c.refilled_at, r.rate, r.burst, p_now) + r.rate * 30),
        case when c.paused_until > p_now then 0 end), 0) as free
    from ready e
    join holdfast.limit_rules r on (r.queue is null or r.queue = p_queue) and (r.type is null or r.type = e.type)
      and (not r.per_key or e.limit_key is not null)
    left join holdfast.limit_counters c on c.rule = r.name
      and coalesce(c.key, '') = case when r.per_key then e.limit_key else '' end
  ), tightest as (
    select distinct on (m.id, m.per_key) m.* from lane_limits m order by m.id, m.per_key, m.free, m.rule
  ), within_keys as ( -- what is left of each limit after the lanes before this one
    select e.id, case when k.free is null then e.n else least(e.n, greatest(k.free - coalesce(sum(e.n) over before, 0), 0))
      end as n
    from ready e left join tightest k on k.id = e.id and k.per_key
    window before as (partition by k.rule, k.key order by e.id rows between unbounded preceding and 1 preceding)
  ), within_shared as (
    select case when k.free is null then e.n else least(e.n, greatest(k.free - coalesce(sum(e.n) over before, 0), 0))
      end as n
    from within_keys e left join tightest k on k.id = e.id and not k.per_key
    window before as (partition by k.rule order by e.id rows between unbounded preceding and 1 preceding)
  )
  select least(coalesce(sum(n), 0), p_max_rows)::bigint from within_shared
$$;

-- Return how many workers with p_per_worker slots a queue can use: never null, and 0 for an empty or unknown queue.
-- Tasks that wait for a limit or in a paused queue do not count. If nothing waits for a limit, there is one worker more
-- for each minute that the oldest task has waited, up to twice as many.
create or replace function holdfast.count_desired_workers(p_queue text, p_per_worker integer default 10,
  p_max_rows integer default 10000)
returns integer
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_queue jsonb := (select q from holdfast.list_task_queues(p_queue, p_max_rows) as q);
  v_claimable bigint := case when v_queue ->> 'paused_at' is null
    then holdfast.count_claimable_tasks(p_queue, p_max_rows, holdfast.now()) else 0 end;
  v_base integer;
begin
  if p_per_worker is null or p_per_worker < 1 then
    perform holdfast.raise_error('HF004', format('per_worker must be at least 1, got %s.', p_per_worker), 'per_worker');
  end if;
  v_base := ceil((v_claimable + coalesce((v_queue ->> 'running')::bigint, 0)) / p_per_worker::numeric);
  return v_base + case when v_claimable = 0 or v_claimable < least((v_queue ->> 'ready')::bigint, p_max_rows) then 0
    else least(v_base, floor(coalesce((v_queue ->> 'oldest_s')::numeric, 0) / 60)) end;
end $$;

-- List the names of all queues that have or had tasks, that somebody configured, or that a worker serves.
create or replace function holdfast.list_queue_names() returns setof text
language sql stable security definer set search_path = '' as $$
  select l.queue from holdfast.lanes l union select q.name from holdfast.queues q
  union select t.queue from holdfast.task_types t
  union select n from holdfast.workers w, unnest(w.queues) as n where n is not null order by 1 limit 10000
$$;

-- Stop claims from a queue until it is resumed. Tasks that run go on. A queue that does not exist yet is accepted with a
-- notice, so that a deployment can pause it before its first task.
create or replace function holdfast.pause_queue(p_queue text, p_reason text default null, p_by text default null)
  returns void
language plpgsql security definer set search_path = '' as $$
begin
  if not exists (select from holdfast.list_queue_names() as n where n = p_queue) then
    raise notice 'Queue "%" has no tasks and no worker.', left(p_queue, 200)
      using hint = 'holdfast.list_queue_names() lists the queues.';
  end if;
  insert into holdfast.queues (name, paused_at, paused_by, paused_reason)
  values (holdfast.check_name(p_queue, 'queue'), holdfast.now(), coalesce(left(p_by, 200), session_user),
    left(p_reason, 1000))
  on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at),
    paused_by = excluded.paused_by,
    paused_reason = excluded.paused_reason;
end $$;

-- Let workers claim from a paused queue again. False if it was not paused.
create or replace function holdfast.resume_queue(p_queue text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.queues q set paused_at = null, paused_by = null, paused_reason = null where q.name = p_queue
    and q.paused_at is not null;
  if not found then
    return false;
  end if;
  perform holdfast.wake_workers(array(select l.id from holdfast.lanes l where l.queue = p_queue));
  return true;
end $$;

-- Set how long a queue keeps ended jobs, and how long a task waits for its priority to rise by one. Null leaves an
-- option unchanged.
create or replace function holdfast.put_queue_settings(
  p_queue text, p_keep_s bigint default null, p_keep_failed_s bigint default null,
    p_ageing_s double precision default null) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_max_keep_s constant double precision := 3155760000; -- 100 years
  v_max_ageing_s constant double precision := 3155760000;
begin
  -- Every claim and every outcome computes with these numbers, so none of them may overflow.
  perform holdfast.check_number(p_keep_s, 'keep_s', 0, v_max_keep_s),
    holdfast.check_number(p_keep_failed_s, 'keep_failed_s', 0, v_max_keep_s),
    holdfast.check_number(p_ageing_s, 'ageing_s', 0.001, v_max_ageing_s);
  insert into holdfast.queues (name, keep_s, keep_failed_s, ageing_s)
  values (holdfast.check_name(p_queue, 'queue'), p_keep_s, p_keep_failed_s, coalesce(p_ageing_s, 60))
  on conflict (name) do update set keep_s = coalesce(p_keep_s, queues.keep_s),
    keep_failed_s = coalesce(p_keep_failed_s, queues.keep_failed_s), ageing_s = coalesce(p_ageing_s, queues.ageing_s);
end $$;

-- Switch fair sharing of a queue on or off. In a fair queue the owners take turns. Tasks that already wait stay in
-- their lanes.
create or replace function holdfast.set_fair_queue(p_queue text, p_owners boolean default true) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.queues (name, fair_owners) values (holdfast.check_name(p_queue, 'queue'),
    coalesce(p_owners, true))
  on conflict (name) do update set fair_owners = excluded.fair_owners;
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_task_queues', 'list_queue_names', 'count_desired_workers',
  'pause_queue', 'resume_queue', 'put_queue_settings', 'set_fair_queue');
call holdfast.grant_execute('service_role', 'list_task_queues', 'list_queue_names', 'count_desired_workers',
  'pause_queue', 'resume_queue',
  'put_queue_settings',
  'set_fair_queue');
