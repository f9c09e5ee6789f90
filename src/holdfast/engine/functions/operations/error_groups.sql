-- Error groups: failed attempts by cause. The cause is the fingerprint that the worker computed from the exception and
-- where it was raised. Every result is bounded: fingerprints are found by skipping through an index, and counts are
-- exact up to p_max_rows and estimates above.

-- List the fingerprints seen since a time. Attempts are kept for thirty days after their end, so `keep_until` tells
-- when an attempt ended, and the query reads only the partitions of that time.
create or replace function holdfast.list_error_fingerprints(p_since timestamptz, p_limit integer) returns setof text
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_kept timestamptz := p_since + interval '30 days';
begin
  return query
  with recursive cause as (
    (select a.fingerprint, 1 as n from holdfast.attempts a where a.fingerprint is not null and a.keep_until >= v_kept
      order by a.fingerprint limit 1)
    union all
    select (select a.fingerprint from holdfast.attempts a where a.fingerprint > c.fingerprint and a.keep_until >= v_kept
      order by a.fingerprint limit 1), c.n + 1
    from cause c where c.fingerprint is not null and c.n < p_limit
  )
  select c.fingerprint from cause c where c.fingerprint is not null;
end $$;

-- List error groups since a time, the most recent first. p_owner: only attempts of that owner's jobs.
create or replace function holdfast.list_error_groups(
  p_since timestamptz default null, p_owner text default null, p_ignored boolean default false,
    p_limit integer default 100,
  p_max_rows integer default 10000) returns setof jsonb
language plpgsql stable security definer set search_path = '' set jit = off set plan_cache_mode = force_custom_plan
  as $$
declare
  v_now timestamptz := holdfast.now();
  v_since timestamptz := coalesce(p_since, v_now - interval '24 hours');
  v_owner text := coalesce(holdfast.get_end_user_id(), p_owner);
begin
  return query
  select g.body from (
    select jsonb_build_object('cause', c.fingerprint, 'attempts', e.attempts, 'exact', e.trend is null, 'first_at', n.first_at,
      'last_at', n.last_at, 'trend', coalesce(e.trend, n.trend), 'ignored_until', i.ignored_until, 'ignored_by',
        i.ignored_by, 'ignored_reason', i.ignored_reason, 'link', i.link)
      || coalesce(holdfast.summarize_error_attempts(c.fingerprint, v_since, v_owner, e.attempts, 0), '{}')
      || jsonb_build_object('jobs', round(n.jobs * greatest(1, e.attempts::numeric / p_max_rows)),
        'jobs_exact', e.attempts <= p_max_rows) as body, n.last_at
    from holdfast.list_error_fingerprints(v_since, 1000) as c (fingerprint)
    left join holdfast.ignored_error_groups i on i.fingerprint = c.fingerprint
    cross join lateral (
      -- Read once, and then counted by time and by job.
      with a as materialized (
        select a.ended_at, a.job_id from holdfast.attempts a
        where a.fingerprint = c.fingerprint and a.ended_at >= v_since and a.keep_until >= v_since + interval '30 days'
          and (v_owner is null or a.owner = v_owner)
        order by a.ended_at desc limit p_max_rows)
      select sum(b.n)::bigint as count, min(b.first_at) as first_at, max(b.last_at) as last_at,
        (select count(*) from (select distinct a.job_id from a) as j) as jobs,
        (select array_agg(coalesce(b2.n, 0) order by s) from generate_series(1, 12) as s
          left join (select * from unnest(array_agg(b.bucket), array_agg(b.n)) as u (
            bucket, n)) as b2 on b2.bucket = s) as trend
      from (
        select least(width_bucket(date_part('epoch', a.ended_at), date_part('epoch', v_since),
            date_part('epoch', greatest(v_now, v_since + interval '1 second')), 12), 12) as bucket,
          count(*) as n, min(a.ended_at) as first_at, max(a.ended_at) as last_at
        from a group by 1) as b
    ) as n
    cross join lateral (
      select greatest(n.count, (select sum(u.n) from unnest(f.trend) as u (n)))::bigint as attempts, f.trend
      -- An expression: a join with a condition would estimate every cause and then leave the result out.
      from (select case when n.count = p_max_rows
        then holdfast.estimate_error_trend(c.fingerprint, v_since, v_now, v_owner) end as trend offset 0) as f
    ) as e
    where n.count > 0 and (p_ignored or i.ignored_until is null or i.ignored_until <= v_now)
  ) as g order by g.last_at desc limit least(greatest(p_limit, 1), 1000);
end $$;

-- Estimate how many attempts failed with a cause in each twelfth of a period. A twelfth with at most 500 attempts is
-- counted; of others, the density at their beginning tells.
create or replace function holdfast.estimate_error_trend(p_cause text, p_since timestamptz, p_until timestamptz,
  p_owner text) returns bigint[]
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_max_rows constant integer := 500;
  v_width interval := greatest(p_until - p_since, interval '1 second') / 12;
  v_from timestamptz;
  v_read bigint;
  v_end timestamptz;
  v_trend bigint[] := '{}';
begin
  for i in 1 .. 12 loop
    v_from := p_since + v_width * (i - 1);
    select count(*), max(a.ended_at) into v_read, v_end from (
      select a.ended_at from holdfast.attempts a
      where a.fingerprint = p_cause and a.ended_at >= v_from and (a.ended_at < v_from + v_width or i = 12)
        and a.keep_until >= p_since + interval '30 days' and (p_owner is null or a.owner = p_owner)
      order by a.ended_at limit v_max_rows) as a;
    v_trend := v_trend || case when v_read < v_max_rows or v_end <= v_from then v_read
      else greatest(v_read, round(v_read * extract(epoch from v_width) / extract(epoch from v_end - v_from)))::bigint end;
  end loop;
  return v_trend;
end $$;

-- Summarize the newest attempts of a cause: the error and its job, task types, workers, versions and the number of
-- jobs. The jobs of p_max_rows attempts are counted; if there are more attempts, the number is an estimate. With 0 they
-- are not counted. The newest attempts are the first of an index; a plan for any cause would read and sort all of them.
create or replace function holdfast.summarize_error_attempts(p_cause text, p_since timestamptz, p_owner text,
  p_attempts bigint, p_max_rows integer) returns jsonb
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  v_newest holdfast.attempts[] := array(
    select a from holdfast.attempts a
    where a.fingerprint = p_cause and a.ended_at >= p_since and a.keep_until >= p_since + interval '30 days'
      and (p_owner is null or a.owner = p_owner)
    order by a.ended_at desc limit 100);
  -- As an array, so that the planner looks the tasks up one by one instead of joining.
  v_tasks uuid[] := array(select n.task_id from unnest(v_newest[1:20]) as n);
  v_workers bigint[] := array(select distinct n.worker_id from unnest(v_newest) as n);
  v_jobs bigint := case when p_max_rows > 0 then (select count(*) from (select distinct a.job_id from (
    select a.job_id from holdfast.attempts a
    where a.fingerprint = p_cause and a.ended_at >= p_since and a.keep_until >= p_since + interval '30 days'
      and (p_owner is null or a.owner = p_owner)
    order by a.ended_at desc limit p_max_rows) as a) as a) end;
  v_types text[];
  v_queues text[];
begin
  select array_agg(distinct t.type), array_agg(distinct t.queue) into v_types, v_queues
  from holdfast.all_tasks t where t.id = any (v_tasks);
  return jsonb_build_object('type', v_newest[1].error_type, 'message', v_newest[1].message,
    'newest_job', v_newest[1].job_id, 'jobs', round(v_jobs * greatest(1, p_attempts::numeric / nullif(p_max_rows, 0))),
    'jobs_exact', p_attempts <= p_max_rows, 'tasks', v_types, 'queues', v_queues,
    'workers', (select array_agg(distinct w.name) from holdfast.workers w where w.id = any (v_workers)),
    'versions', (select array_agg(distinct w.report ->> 'version') from holdfast.workers w
      where w.id = any (v_workers) and w.report ->> 'version' is not null));
end $$;

-- Return one error group with its newest attempts, or null when it was not seen since then.
create or replace function holdfast.get_error_group(
  p_cause text, p_since timestamptz default null, p_owner text default null, p_limit integer default 20) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off set plan_cache_mode = force_custom_plan
  as $$
declare
  v_now timestamptz := holdfast.now();
  v_since timestamptz := coalesce(p_since, v_now - interval '7 days');
  v_owner text := coalesce(holdfast.get_end_user_id(), p_owner);
  v_group jsonb;
begin
  select jsonb_build_object('cause', p_cause, 'attempts', case when count(*) < 10000 then count(*) else greatest(count(*),
      (select sum(n) from unnest(holdfast.estimate_error_trend(p_cause, v_since, v_now, v_owner)) as n)) end,
    'exact', count(*) < 10000, 'first_at', min(a.ended_at),
    'last_at', max(a.ended_at), 'since', v_since) into v_group
  from (select a.ended_at from holdfast.attempts a where a.fingerprint = p_cause and a.ended_at >= v_since
    and a.keep_until >= v_since + interval '30 days'
    and (v_owner is null or a.owner = v_owner) order by a.ended_at desc limit 10000) as a;
  if v_group ->> 'attempts' = '0' then
    return null;
  end if;
  return v_group || holdfast.summarize_error_attempts(p_cause, v_since, v_owner, (v_group ->> 'attempts')::bigint, 10000)
    || coalesce((
      select jsonb_build_object('ignored_until', i.ignored_until, 'ignored_by', i.ignored_by, 'ignored_reason',
        i.ignored_reason, 'link',
        i.link)
      from holdfast.ignored_error_groups i where i.fingerprint = p_cause), '{}')
    || jsonb_build_object('samples', (
      select jsonb_agg(jsonb_build_object('task', a.task_id, 'job', a.job_id, 'attempt', a.attempt, 'outcome',
        a.outcome,
        'worker', (select w.name from holdfast.workers w where w.id = a.worker_id), 'version',
        (select w.report ->> 'version' from holdfast.workers w where w.id = a.worker_id), 'started_at', a.started_at,
        'ended_at', a.ended_at, 'type', a.error_type, 'message', a.message, 'traceback', a.traceback,
        'name', (select t.name from holdfast.all_tasks t where t.id = a.task_id limit 1),
        'args', (select t.args from holdfast.all_tasks t where t.id = a.task_id limit 1)) order by a.ended_at desc)
      from (select * from holdfast.attempts a where a.fingerprint = p_cause and a.ended_at >= v_since
        and (v_owner is null or a.owner = v_owner) order by a.ended_at desc
          limit least(greatest(p_limit, 1), 100)) as a));
end $$;

-- Ignore an error group until a time; null: stop ignoring it. p_link is the URL of a bug report about it.
create or replace function holdfast.ignore_error_group(
  p_cause text, p_until timestamptz default null, p_by text default null, p_reason text default null,
    p_link text default null) returns void
language plpgsql security definer set search_path = '' as $$
begin
  if p_cause is null or octet_length(p_cause) not between 1 and 1000 then
    perform holdfast.raise_error('HF004', 'cause must be 1 to 1000 bytes long.', 'cause');
  end if;
  if p_link !~ '^https?://' then
    perform holdfast.raise_error('HF004', 'link must start with http:// or https://.', 'link');
  end if;
  insert into holdfast.ignored_error_groups (fingerprint, ignored_until, ignored_by, ignored_reason, link)
  values (p_cause, p_until, p_by, left(p_reason, 1000), left(p_link, 2000))
  on conflict (fingerprint) do update set ignored_until = excluded.ignored_until, ignored_by = excluded.ignored_by,
    ignored_reason = excluded.ignored_reason,
    link = coalesce(excluded.link, ignored_error_groups.link);
end $$;

call holdfast.grant_execute('holdfast_worker', 'list_error_groups', 'get_error_group', 'ignore_error_group');
call holdfast.grant_execute('service_role', 'list_error_groups', 'get_error_group', 'ignore_error_group');
