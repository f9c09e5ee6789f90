-- Task queues: list them, pause and resume them, and set their options. Every count is bounded by p_max_rows.

-- List every queue that has or had tasks, or was paused or configured. `ready` is counted up to p_max_rows per queue;
-- `ready_exact` is false where the count stopped there. The first ready task of each lane is its oldest.
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
    select n.name as queue, c.n, o.oldest_s
    from names n
    cross join lateral (
      select count(*) as n from (
        select from holdfast.lanes l
        cross join lateral (
          select from holdfast.tasks t where t.lane_id = l.id and t.status = 'ready' and t.pos >= l.cursor
          order by t.pos limit p_max_rows + 1) as t
        where l.queue = n.name limit p_max_rows + 1) as t
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
    select l.queue, count(*) as n from (select t.lane_id from holdfast.tasks t where t.status = 'running'
      limit p_max_rows) as t
    join holdfast.lanes l on l.id = t.lane_id group by l.queue
  ), scheduled as (
    select l.queue, count(*) as n
    from (select t.lane_id from holdfast.tasks t where t.status = 'scheduled' order by t.due_at limit p_max_rows) as t
    join holdfast.lanes l on l.id = t.lane_id group by l.queue
  )
  select jsonb_build_object('queue', n.name, 'ready', least(r.n, p_max_rows), 'ready_exact', r.n <= p_max_rows,
    'running', coalesce(u.n, 0), 'scheduled', coalesce(s.n, 0),
    'oldest_s', r.oldest_s, 'types', (select array_agg(distinct l.type) from holdfast.lanes l where l.queue = n.name),
    'workers', (select count(*) from holdfast.workers w where w.stopped_at is null
      and w.seen_at > v_now - interval '2 minutes' and n.name = any (w.queues)),
    'limits', (select array_agg(i.name order by i.name) from holdfast.limit_rules i where i.queue = n.name))
    || coalesce(to_jsonb(q) - 'name', '{}')
  from names n
  join ready r on r.queue = n.name left join running u on u.queue = n.name left join scheduled s on s.queue = n.name
  left join holdfast.queues q on q.name = n.name
  order by n.name;
end $$;

-- Return how many workers with p_per_worker slots a queue can use: never null, and 0 for an empty or unknown queue. One
-- worker more for each minute that the oldest task has waited, up to twice as many. Tasks that wait in a paused queue
-- do not count.
create or replace function holdfast.count_desired_workers(p_queue text, p_per_worker integer default 8,
  p_max_rows integer default 10000)
returns integer
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_queue jsonb := (select q from holdfast.list_task_queues(p_queue, p_max_rows) as q);
  v_ready bigint := case when v_queue ->> 'paused_at' is null then coalesce((v_queue ->> 'ready')::bigint, 0)
    else 0 end;
  v_base integer;
begin
  if p_per_worker is null or p_per_worker < 1 then
    perform holdfast.raise_error('HF004', format('per_worker must be at least 1, got %s.', p_per_worker), 'per_worker');
  end if;
  v_base := ceil((v_ready + coalesce((v_queue ->> 'running')::bigint, 0)) / p_per_worker::numeric);
  return v_base + case when v_ready = 0 then 0
    else least(v_base, floor(coalesce((v_queue ->> 'oldest_s')::numeric, 0) / 60)) end;
end $$;

-- Stop claims from a queue until it is resumed. Tasks that run go on.
create or replace function holdfast.pause_queue(p_queue text, p_reason text default null, p_by text default null)
  returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.queues (name, paused_at, paused_by, paused_reason)
  values (holdfast.check_name(p_queue, 'queue'), holdfast.now(), coalesce(p_by, session_user), p_reason)
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
begin
  if p_keep_s < 0 or p_keep_failed_s < 0 or p_ageing_s <= 0 then
    perform holdfast.raise_error('HF004', 'keep_s and keep_failed_s must be at least 0, and ageing_s greater than 0.',
      'keep_s');
  end if;
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

call holdfast.grant_execute('holdfast_worker', 'list_task_queues', 'count_desired_workers', 'pause_queue',
  'resume_queue', 'put_queue_settings', 'set_fair_queue');
call holdfast.grant_execute('service_role', 'list_task_queues', 'count_desired_workers', 'pause_queue', 'resume_queue',
  'put_queue_settings',
  'set_fair_queue');
