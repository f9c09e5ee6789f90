-- Throughput by queue, task type, worker or owner, for charts. Samples by worker and owner are taken once a minute from
-- the tasks that ended in it, so a job costs nothing more when it ends.

-- Return how many names of each kind a minute and a quarter of an hour keep.
create or replace function holdfast.get_max_sampled_names() returns integer
language sql immutable parallel safe as $$ select 25 $$;

-- Record the samples by worker and owner of a period of full minutes.
create or replace function holdfast.record_activity_samples(p_from timestamptz, p_until timestamptz) returns void
language plpgsql set search_path = '' set jit = off as $$
begin
  with ended as (
    select date_trunc('minute', e.finished_at) as at, e.worker_id, e.owner,
      grouping(e.worker_id) = 0 as is_worker, count(*) filter (where e.status = 'succeeded') as succeeded,
      count(*) filter (where e.status = 'failed') as failed, count(*) filter (where e.status = 'cancelled') as cancelled,
      coalesce(sum(date_part('epoch', e.finished_at - e.started_at)), 0) as run_s
    from (
      select h.worker_id, h.owner, h.status, h.started_at, h.finished_at from holdfast.history h
      where h.finished_at >= p_from and h.finished_at < p_until
      union all
      select t.worker_id, t.owner, t.status, t.started_at, t.finished_at from holdfast.tasks t
      where t.finished_at >= p_from and t.finished_at < p_until
    ) as e
    group by grouping sets ((date_trunc('minute', e.finished_at), e.worker_id),
      (date_trunc('minute', e.finished_at), e.owner))
  )
  insert into holdfast.activity_samples (span_s, kind, at, name, succeeded, failed, cancelled, run_s)
  select 60, s.kind, s.at, s.name, sum(s.succeeded), sum(s.failed), sum(s.cancelled), sum(s.run_s)
  from (
    select g.kind, g.at, g.succeeded, g.failed, g.cancelled, g.run_s,
      case when row_number() over (partition by g.kind, g.at order by g.succeeded + g.failed + g.cancelled desc, g.name)
        <= holdfast.get_max_sampled_names() then g.name else '' end as name
    from (
      select case when e.is_worker then 'worker' else 'owner' end as kind, e.at,
        case when e.is_worker then w.name else e.owner end as name, e.succeeded, e.failed, e.cancelled, e.run_s
      from ended e left join holdfast.workers w on e.is_worker and w.id = e.worker_id
    ) as g where g.name is not null
  ) as s
  group by s.kind, s.at, s.name
  on conflict do nothing;
end $$;

-- Add the activity samples of full quarters of an hour up, and delete those past their retention.
create or replace function holdfast.roll_up_activity_samples(p_from timestamptz, p_until timestamptz) returns void
language plpgsql set search_path = '' as $$
begin
  insert into holdfast.activity_samples (span_s, kind, at, name, succeeded, failed, cancelled, run_s)
  select 900, s.kind, s.at, s.name, sum(s.succeeded), sum(s.failed), sum(s.cancelled), sum(s.run_s)
  from (
    select g.kind, g.at, g.succeeded, g.failed, g.cancelled, g.run_s,
      -- The empty name sorts last, as it is not the name of one worker or owner.
      case when row_number() over (partition by g.kind, g.at order by g.name = '',
        g.succeeded + g.failed + g.cancelled desc, g.name) <= holdfast.get_max_sampled_names() then g.name
        else '' end as name
    from (
      select a.kind, to_timestamp(floor(date_part('epoch', a.at) / 900) * 900) as at, a.name,
        sum(a.succeeded) as succeeded, sum(a.failed) as failed, sum(a.cancelled) as cancelled, sum(a.run_s) as run_s
      from holdfast.activity_samples a where a.span_s = 60 and a.at >= p_from and a.at < p_until group by 1, 2, 3
    ) as g
  ) as s
  group by s.kind, s.at, s.name
  on conflict do nothing;
  delete from holdfast.activity_samples a
  where a.span_s = 60 and a.kind in ('worker', 'owner') and a.at < p_until - interval '26 hours';
  delete from holdfast.activity_samples a
  where a.span_s = 900 and a.kind in ('worker', 'owner') and a.at < p_until - interval '35 days';
end $$;

-- Return the samples of a period by name: of queues and task types, or of workers and owners.
create or replace function holdfast.list_samples_by_name(
  p_kind text, p_from timestamptz, p_until timestamptz, p_step_s integer, p_span_s integer, p_name text)
returns table (at timestamptz, name text, succeeded bigint, failed bigint, cancelled bigint, run_s double precision)
language plpgsql stable set search_path = '' set jit = off as $$
begin
  if p_kind in ('queue', 'type') then
    return query
    select to_timestamp(floor(date_part('epoch', s.at) / p_step_s) * p_step_s),
      case when p_kind = 'queue' then s.queue else s.type end, sum(s.succeeded)::bigint, sum(s.failed)::bigint,
      sum(s.cancelled)::bigint, null::double precision
    from holdfast.metric_samples s
    where s.span_s = p_span_s and s.at >= p_from and s.at < p_until
      and (p_name is null or case when p_kind = 'queue' then s.queue else s.type end = p_name)
    group by 1, 2;
  else
    return query
    select to_timestamp(floor(date_part('epoch', a.at) / p_step_s) * p_step_s), a.name, sum(a.succeeded)::bigint,
      sum(a.failed)::bigint, sum(a.cancelled)::bigint, sum(a.run_s)
    from holdfast.activity_samples a
    where a.span_s = p_span_s and a.kind = p_kind and a.at >= p_from and a.at < p_until
      and (p_name is null or a.name = p_name)
    group by 1, 2;
  end if;
end $$;

-- Return the data of a chart by name: {from, until, step_s, names: [{name, succeeded, failed, cancelled, run_s}],
-- points: [{at, name, ...}]}. p_kind is queue, type, worker or owner. At most p_max_names names, the most active first;
-- the rest is added up under the empty name. With p_name, only that name.
create or replace function holdfast.get_throughput_by_name(p_kind text, p_from timestamptz, p_until timestamptz,
  p_name text default null, p_max_names integer default 8) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_range record;
  v_data jsonb;
begin
  if p_kind is null or p_kind not in ('queue', 'type', 'worker', 'owner') then
    perform holdfast.raise_error('HF004', format('Charts by %s do not exist.', quote_nullable(left(p_kind, 60))), 'kind',
      'Choose queue, type, worker or owner.');
  end if;
  select * into v_range from holdfast.choose_chart_steps(p_from, p_until);
  with samples as materialized (
    select * from holdfast.list_samples_by_name(
      p_kind, v_range.from_at, v_range.until_at, v_range.step_s, v_range.span_s, p_name)
  ), ranked as (
    select s.name, row_number() over (order by s.name = '', sum(s.succeeded + s.failed + s.cancelled) desc, s.name) as place
    from samples s group by s.name
  ), shown as materialized (
    select s.at, case when r.place <= least(greatest(p_max_names, 1), 50) then s.name else '' end as name, s.succeeded,
      s.failed, s.cancelled, s.run_s
    from samples s join ranked r on r.name = s.name
  )
  select jsonb_build_object(
    'names', (select coalesce(jsonb_agg(to_jsonb(n) order by n.name = '', n.succeeded + n.failed + n.cancelled desc, n.name),
      '[]') from (
      select s.name, sum(s.succeeded)::bigint as succeeded, sum(s.failed)::bigint as failed,
        sum(s.cancelled)::bigint as cancelled, sum(s.run_s) as run_s
      from shown s group by s.name) as n),
    'points', (select coalesce(jsonb_agg(to_jsonb(n) order by n.at, n.name), '[]') from (
      select s.at, s.name, sum(s.succeeded)::bigint as succeeded, sum(s.failed)::bigint as failed,
        sum(s.cancelled)::bigint as cancelled, sum(s.run_s) as run_s
      from shown s group by s.at, s.name) as n)) into v_data;
  return jsonb_build_object('from', v_range.from_at, 'until', v_range.until_at, 'step_s', v_range.step_s) || v_data;
end $$;

call holdfast.grant_execute('holdfast_worker', 'get_throughput_by_name');
call holdfast.grant_execute('service_role', 'get_throughput_by_name');
