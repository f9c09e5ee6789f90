-- Throughput: samples per minute of the tasks that ended, for charts. Samples are stored, so charts survive restarts
-- and are the same for every reader.

-- Build a histogram: an array of 24 buckets from bucket numbers and count.
create or replace function holdfast.build_histogram_from_bucket_counts(
  p_buckets integer[], p_counts bigint[]) returns bigint[]
language plpgsql immutable set search_path = '' as $$
declare
  v_all bigint[] := array_fill(0::bigint, array[24]);
begin
  for i in 1 .. coalesce(cardinality(p_buckets), 0) loop
    continue when p_buckets[i] is null;
    v_all[p_buckets[i]] := v_all[p_buckets[i]] + p_counts[i];
  end loop;
  return v_all;
end $$;

-- Return the number of the bucket for a duration; each bucket is twice as wide as the previous one, from 1 ms.
create or replace function holdfast.find_histogram_bucket(p_span interval) returns integer
language sql immutable parallel safe as $$
  select case when p_span is null then null
    when pg_catalog.date_part('epoch', p_span) operator(pg_catalog.<) 0.001 then 1
    else least(pg_catalog.floor(pg_catalog.ln(pg_catalog.date_part('epoch', p_span) operator(pg_catalog.*) 1000)
      operator(pg_catalog./) 0.6931471805599453)::pg_catalog.int4 operator(pg_catalog.+) 2, 24) end
$$;

-- Return the duration in seconds below which p_share of the counted values lie; null for an empty histogram.
create or replace function holdfast.compute_histogram_quantile(
  p_counts bigint[], p_share double precision) returns double precision
language plpgsql immutable set search_path = '' as $$
declare
  v_total bigint := (select sum(n) from unnest(p_counts) as n);
  v_below bigint := 0;
begin
  if coalesce(v_total, 0) = 0 then
    return null;
  end if;
  for i in 1 .. 24 loop
    if p_counts[i] > 0 and v_below + p_counts[i] >= p_share * v_total then
      -- Assumes that the values are spread evenly within the bucket, on a logarithmic scale.
      return power(2, i - 2 + (p_share * v_total - v_below) / p_counts[i]) / 1000;
    end if;
    v_below := v_below + p_counts[i];
  end loop;
  return power(2, 23) / 1000;
end $$;

-- Add histograms up. p_arrays is a JSON array of histograms.
create or replace function holdfast.sum_histograms(p_arrays jsonb) returns bigint[]
language plpgsql immutable set search_path = '' as $$
begin
  return array(select sum(n::bigint)::bigint from jsonb_array_elements(p_arrays) as a
    cross join lateral jsonb_array_elements_text(a.value) with ordinality as u (n, i) group by i order by i);
end $$;

-- Record samples of the minutes that have ended. A second concurrent caller returns at once.
create or replace function holdfast.record_throughput_samples(p_now timestamptz) returns integer
language plpgsql set search_path = '' set jit = off as $$
declare
  v_until timestamptz := date_trunc('minute', p_now - interval '5 seconds');
  v_from timestamptz;
  v_count integer;
begin
  if not pg_try_advisory_xact_lock(hashtext('holdfast'), hashtext('samples')) then
    return 0;
  end if;
  select greatest((o.value #>> '{}')::timestamptz, v_until - interval '1 hour') into v_from from holdfast.options o
    where o.name = 'sampled_until';
  v_from := coalesce(v_from, v_until - interval '1 hour');
  if v_from >= v_until then
    return 0;
  end if;
  insert into holdfast.options (name, value) values ('sampled_until', to_jsonb(v_until))
  on conflict (name) do update set value = excluded.value;
  insert into holdfast.metric_samples (span_s, at, queue, type, succeeded, failed, cancelled, wait_histogram,
    run_histogram)
  select 60, f.at, f.queue, f.type, coalesce(sum(f.n) filter (where f.status = 'succeeded'), 0),
    coalesce(sum(f.n) filter (where f.status = 'failed'), 0),
      coalesce(sum(f.n) filter (where f.status = 'cancelled'), 0),
        holdfast.build_histogram_from_bucket_counts(array_agg(f.wait), array_agg(f.n)),
          holdfast.build_histogram_from_bucket_counts(array_agg(f.run), array_agg(f.n))
  from (
    select date_trunc('minute', e.finished_at) as at, k.queue, k.type, e.status,
      holdfast.find_histogram_bucket(e.started_at - e.due_at) as wait,
      holdfast.find_histogram_bucket(e.finished_at - e.started_at) as run, count(*) as n
    from (
      select h.policy_id, h.status, h.due_at, h.started_at, h.finished_at from holdfast.history h
      where h.finished_at >= v_from and h.finished_at < v_until
      union all
      select l.policy_id, t.status, t.due_at, t.started_at, t.finished_at from holdfast.tasks t
        join holdfast.lanes l on l.id = t.lane_id
      where t.finished_at >= v_from and t.finished_at < v_until
    ) as e join holdfast.task_policies k on k.id = e.policy_id
    group by 1, 2, 3, 4, 5, 6
  ) as f group by f.at, f.queue, f.type
  on conflict do nothing;
  get diagnostics v_count = row_count;
  perform holdfast.record_activity_samples(v_from, v_until), holdfast.record_queue_depths(v_until),
    holdfast.roll_up_throughput_samples(v_from, v_until);
  return v_count;
end $$;

-- Record how many tasks are ready and running in each queue.
create or replace function holdfast.record_queue_depths(p_at timestamptz) returns void
language plpgsql set search_path = '' as $$
begin
  insert into holdfast.queue_depths (at, queue, ready, running, oldest_s)
  select p_at, q ->> 'queue', (q ->> 'ready')::bigint, (q ->> 'running')::bigint, (q ->> 'oldest_s')::double precision
  from holdfast.list_task_queues(null, 50000) as q where (q ->> 'ready')::bigint > 0 or (q ->> 'running')::bigint > 0
  on conflict do nothing;
end $$;

-- Add the samples of full quarters of an hour up, and delete samples past their retention.
create or replace function holdfast.roll_up_throughput_samples(p_from timestamptz, p_until timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_from timestamptz := to_timestamp(floor(extract(epoch from p_from) / 900) * 900);
  v_until timestamptz := to_timestamp(floor(extract(epoch from p_until) / 900) * 900);
begin
  if v_from >= v_until then
    return;
  end if;
  insert into holdfast.metric_samples (span_s, at, queue, type, succeeded, failed, cancelled, wait_histogram,
    run_histogram)
  select 900, s.at, s.queue, s.type, s.succeeded, s.failed, s.cancelled, s.wait_histogram, s.run_histogram
  from holdfast.sum_throughput_samples(v_from, v_until, 900, 60, null, null, true) as s
  on conflict do nothing;
  delete from holdfast.metric_samples s where s.span_s = 60 and s.at < p_until - interval '26 hours';
  delete from holdfast.metric_samples s where s.span_s = 900 and s.at < p_until - interval '35 days';
  delete from holdfast.queue_depths d where d.at < p_until - interval '26 hours';
  perform holdfast.roll_up_activity_samples(v_from, v_until);
end $$;

-- Add samples of one span up to steps of p_step_s, separately by queue and type (p_by_type) or all together.
create or replace function holdfast.sum_throughput_samples(
  p_from timestamptz, p_until timestamptz, p_step_s integer, p_span_s integer, p_queue text, p_type text,
    p_by_type boolean)
returns table (at timestamptz, queue text, type text, succeeded bigint, failed bigint, cancelled bigint,
  wait_histogram bigint[], run_histogram bigint[])
language plpgsql stable set search_path = '' set jit = off as $$
begin
  -- Each element is added up by itself: to unnest the arrays would make 24 rows of each sample.
  return query
  select to_timestamp(floor(date_part('epoch', s.at) / p_step_s) * p_step_s) as at,
    case when p_by_type then s.queue end as queue, case when p_by_type then s.type end as type,
    sum(s.succeeded)::bigint, sum(s.failed)::bigint, sum(s.cancelled)::bigint,
    array[
      sum(s.wait_histogram[1]), sum(s.wait_histogram[2]), sum(s.wait_histogram[3]), sum(s.wait_histogram[4]),
      sum(s.wait_histogram[5]), sum(s.wait_histogram[6]), sum(s.wait_histogram[7]), sum(s.wait_histogram[8]),
      sum(s.wait_histogram[9]), sum(s.wait_histogram[10]), sum(s.wait_histogram[11]), sum(s.wait_histogram[12]),
      sum(s.wait_histogram[13]), sum(s.wait_histogram[14]), sum(s.wait_histogram[15]), sum(s.wait_histogram[16]),
      sum(s.wait_histogram[17]), sum(s.wait_histogram[18]), sum(s.wait_histogram[19]), sum(s.wait_histogram[20]),
      sum(s.wait_histogram[21]), sum(s.wait_histogram[22]), sum(s.wait_histogram[23]), sum(s.wait_histogram[24])]::bigint[],
    array[
      sum(s.run_histogram[1]), sum(s.run_histogram[2]), sum(s.run_histogram[3]), sum(s.run_histogram[4]),
      sum(s.run_histogram[5]), sum(s.run_histogram[6]), sum(s.run_histogram[7]), sum(s.run_histogram[8]),
      sum(s.run_histogram[9]), sum(s.run_histogram[10]), sum(s.run_histogram[11]), sum(s.run_histogram[12]),
      sum(s.run_histogram[13]), sum(s.run_histogram[14]), sum(s.run_histogram[15]), sum(s.run_histogram[16]),
      sum(s.run_histogram[17]), sum(s.run_histogram[18]), sum(s.run_histogram[19]), sum(s.run_histogram[20]),
      sum(s.run_histogram[21]), sum(s.run_histogram[22]), sum(s.run_histogram[23]), sum(s.run_histogram[24])]::bigint[]
  from holdfast.metric_samples s
  where s.span_s = p_span_s and s.at >= p_from and s.at < p_until and (p_queue is null or s.queue = p_queue)
    and (p_type is null or s.type = p_type)
  group by 1, 2, 3 order by 1;
end $$;

-- Return the data of a chart of the last hours, as get_throughput_range does.
create or replace function holdfast.get_throughput_chart(
  p_hours double precision default 1, p_queue text default null, p_type text default null) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return holdfast.get_throughput_range(
    v_now - least(greatest(coalesce(p_hours, 1), 0.25), 840) * interval '1 hour', v_now, p_queue, p_type);
end $$;

-- Return the steps of a chart of a period. The step grows with the period; samples by the minute are kept for 26 hours.
create or replace function holdfast.choose_chart_steps(p_from timestamptz, p_until timestamptz,
  out from_at timestamptz, out until_at timestamptz, out step_s integer, out span_s integer)
language plpgsql stable set search_path = '' as $$
declare
  v_hours double precision := least(greatest(extract(epoch from p_until - p_from) / 3600, 0.05), 840);
begin
  span_s := case when v_hours <= 6.5 and p_from > holdfast.now() - interval '25 hours' then 60 else 900 end;
  step_s := greatest(span_s, case when v_hours < 1.1 then 60 when v_hours < 6.1 then 300 when v_hours < 24.1
    then 900 when v_hours < 168.1 then 7200 else 28800 end);
  until_at := to_timestamp(ceil(extract(epoch from p_until) / step_s) * step_s);
  from_at := until_at - make_interval(secs => ceil((v_hours * 3600 - 0.001) / step_s) * step_s);
end $$;

-- Return the data of a chart of a period: {from, until, step_s, points: [{at, succeeded, failed, cancelled, wait_p50,
-- ...}], depths}.
create or replace function holdfast.get_throughput_range(
  p_from timestamptz, p_until timestamptz, p_queue text default null, p_type text default null) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_from timestamptz;
  v_until timestamptz;
  v_step integer;
  v_span integer;
begin
  select c.from_at, c.until_at, c.step_s, c.span_s into v_from, v_until, v_step, v_span
  from holdfast.choose_chart_steps(p_from, p_until) as c;
  return jsonb_build_object('from', v_from, 'until', v_until, 'step_s', v_step, 'sampled_until', (
      select o.value from holdfast.options o where o.name = 'sampled_until'),
    'points', (select coalesce(jsonb_agg(jsonb_build_object('at', s.at, 'succeeded', s.succeeded, 'failed', s.failed,
      'cancelled', s.cancelled,
      'wait_p50', holdfast.compute_histogram_quantile(s.wait_histogram, 0.5), 'wait_p95',
        holdfast.compute_histogram_quantile(s.wait_histogram, 0.95),
      'run_p50', holdfast.compute_histogram_quantile(s.run_histogram, 0.5), 'run_p95',
        holdfast.compute_histogram_quantile(s.run_histogram, 0.95))
        order by s.at), '[]')
      from holdfast.sum_throughput_samples(v_from, v_until, v_step, v_span, p_queue, p_type, false) as s),
    'depths', (select coalesce(jsonb_agg(jsonb_build_object('at', d.at, 'ready', d.ready, 'running', d.running)
      order by d.at), '[]') from (
      select to_timestamp(floor(extract(epoch from d.at) / v_step) * v_step) as at, max(d.ready) as ready,
        max(d.running) as running from (
        select d.at, sum(d.ready) as ready, sum(d.running) as running from holdfast.queue_depths d
        where d.at >= v_from and d.at < v_until and (p_queue is null or d.queue = p_queue) and p_type is null group by d.at) as d
          group by 1) as d));
end $$;

-- Return the histograms of the wait and run times of a period, in the steps of get_throughput_range. A reader of several
-- databases adds them up, because quantiles of two databases do not give those of both.
create or replace function holdfast.get_throughput_histograms(
  p_from timestamptz, p_until timestamptz, p_queue text default null, p_type text default null) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_range record;
begin
  select * into v_range from holdfast.choose_chart_steps(p_from, p_until);
  return (select coalesce(jsonb_agg(jsonb_build_object('at', s.at, 'wait', s.wait_histogram, 'run', s.run_histogram)
      order by s.at), '[]')
    from holdfast.sum_throughput_samples(
      v_range.from_at, v_range.until_at, v_range.step_s, v_range.span_s, p_queue, p_type, false) as s);
end $$;

-- Return, for each queue and task type, the outcomes and durations of the last hours and a trend in twelve steps.
create or replace function holdfast.get_task_type_stats(p_hours double precision default 24) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_now timestamptz := holdfast.now();
  v_span integer := case when p_hours <= 6 then 60 else 900 end;
  v_step integer := greatest((p_hours * 3600 / 12)::integer, v_span);
  v_from timestamptz := v_now - p_hours * interval '1 hour';
  v_whole timestamptz := to_timestamp(floor(extract(epoch from v_now) / 900) * 900);
begin
  return query
  with last_ok as (
    select s.queue, s.type, max(s.at) as at from holdfast.metric_samples s
    where s.span_s = 60 and s.succeeded > 0 and s.at >= v_now - least(p_hours, 26) * interval '1 hour'
      group by s.queue, s.type
  )
  select jsonb_build_object('queue', f.queue, 'type', f.type, 'succeeded', sum(f.succeeded), 'failed', sum(f.failed),
    'cancelled', sum(f.cancelled),
    'run_p50', holdfast.compute_histogram_quantile(holdfast.sum_histograms(jsonb_agg(f.run_histogram)), 0.5), 'run_p95',
      holdfast.compute_histogram_quantile(holdfast.sum_histograms(jsonb_agg(f.run_histogram)), 0.95),
    'wait_p95', holdfast.compute_histogram_quantile(holdfast.sum_histograms(jsonb_agg(f.wait_histogram)), 0.95),
    'last_ok_at', (select o.at from last_ok o where o.queue = f.queue and o.type = f.type), 'trend',
      jsonb_agg(jsonb_build_array(f.at, f.succeeded, f.failed) order by f.at))
  from (
    select * from holdfast.sum_throughput_samples(v_from, v_whole, v_step, v_span, null, null, true)
    union all
    -- The current quarter of an hour is added up from its minutes.
    select * from holdfast.sum_throughput_samples(greatest(v_whole, v_from), 'infinity', v_step, 60, null, null, true)
  ) as f
  group by f.queue, f.type order by f.queue, f.type limit 5000;
end $$;

call holdfast.grant_execute('holdfast_worker', 'get_throughput_chart', 'get_throughput_range',
  'get_throughput_histograms', 'get_task_type_stats');
call holdfast.grant_execute('service_role', 'get_throughput_chart', 'get_throughput_range',
  'get_throughput_histograms', 'get_task_type_stats');
