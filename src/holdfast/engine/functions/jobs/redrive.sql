-- Redrive: retry failed jobs by filter, the oldest failure first, from a bounded number of rows.
--
-- Failures are read through indexes in the order of their time: all of them, those of each task policy if the filter
-- has a type or a queue, or the attempts of an error cause; and the jobs that ended but are not archived yet. A scan
-- ends after p_max_rows rows, never between two rows with the same time. What lies behind the end of a scan is left
-- for the next call, which begins there: no job is skipped.

-- Retry failed jobs that match {ids, owner, queue, type, error_type, fingerprint, since, until, from}, oldest first,
-- spread evenly over p_spread_s. With p_dry_run only count them. Return {found, restarted}; jobs that are still
-- scheduled can be cancelled. If there is more to read than one call reads, the response also has {more: true, next,
-- until}: pass them as `from` and `until` of the next filter, so that jobs that were restarted and failed again are
-- not found twice.
create or replace function holdfast.redrive(
  p_filter jsonb, p_limit integer default 1000, p_dry_run boolean default false, p_spread_s double precision default 0)
    returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_failed record;
  v_count integer := 0;
  v_id uuid;
begin
  select * into v_failed from holdfast.find_failed_job_ids(p_filter, least(greatest(coalesce(p_limit, 1000), 1),
    100000));
  if not p_dry_run then
    foreach v_id in array v_failed.ids loop
      v_count := v_count + sign((holdfast.retry_job(v_id, null,
        coalesce(p_spread_s, 0) * v_count / greatest(cardinality(v_failed.ids), 1)) ->> 'restarted')::int);
    end loop;
  end if;
  return jsonb_build_object('matched', cardinality(v_failed.ids), 'restarted', v_count)
    || case when v_failed.next is null then '{}' else jsonb_build_object('more', true, 'next', v_failed.next, 'until',
      coalesce(holdfast.parse_time_field(p_filter, 'until'), holdfast.now())) end;
end $$;

-- Find at most p_limit failed jobs that match a filter. `next` is the time from which on jobs were not read; null if
-- all were read.
create or replace function holdfast.find_failed_job_ids(p_filter jsonb, p_limit integer, out ids uuid[],
  out next timestamptz)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_since timestamptz := coalesce(holdfast.parse_time_field(p_filter, 'since'), '-infinity');
  v_until timestamptz := coalesce(holdfast.parse_time_field(p_filter, 'until'), 'infinity');
  v_from timestamptz := coalesce(holdfast.parse_time_field(p_filter, 'from'), '-infinity');
  v_has_filter boolean := v_user is not null or p_filter ?| '{owner,error_type,fingerprint}';
  v_policy_count bigint := case when p_filter ?| '{queue,type}' then (select count(*) from holdfast.task_policies k
    where (not p_filter ? 'queue' or k.queue = p_filter ->> 'queue')
      and (not p_filter ? 'type' or k.type = p_filter ->> 'type')) else 1 end;
  -- If every row matches, as many as requested; otherwise some thousands. A type or a queue with very many policies
  -- divides them.
  v_max_rows integer := greatest(case when v_has_filter then greatest(p_limit, 2000)
    else p_limit + 1 end / greatest(v_policy_count / 10, 1), 20);
  v_times timestamptz[];
begin
  with failed_tasks as materialized (
    select * from holdfast.list_failed_tasks_by_job_ids(array(
      select jsonb_array_elements_text(p_filter -> 'ids')::uuid))
      where p_filter ? 'ids'
    union all
    select * from holdfast.list_failed_tasks_by_cause(p_filter ->> 'fingerprint', v_from, v_max_rows)
      where p_filter ? 'fingerprint' and not p_filter ? 'ids'
    union all
    select * from holdfast.list_failed_tasks_by_time(p_filter, greatest(v_since, v_from), v_until, v_max_rows)
      where not p_filter ?| '{ids,fingerprint}'
  ), ends as materialized (
    select min(e.last) as at from (select max(w.at) as last from failed_tasks w
      group by w.scan having max(w.rows_read) >= v_max_rows) as e
  ), matching as (
    select w.job_id, min(w.at) as at from failed_tasks w join holdfast.task_policies k on k.id = w.policy_id
    where w.at <= coalesce((select e.at from ends e), 'infinity') and w.finished_at between v_since and v_until
      and (v_user is null or w.owner = v_user)
      and (not p_filter ? 'owner' or w.owner = p_filter ->> 'owner')
      and (not p_filter ? 'queue' or k.queue = p_filter ->> 'queue')
      and (not p_filter ? 'type' or k.type = p_filter ->> 'type')
      and (not p_filter ? 'error_type' or w.error ->> 'type' = p_filter ->> 'error_type')
      and (not p_filter ?& '{ids,fingerprint}' or exists (select from holdfast.attempts a
        where a.task_id = w.task_id and a.fingerprint = p_filter ->> 'fingerprint'))
    group by w.job_id order by min(w.at) limit p_limit + 1
  )
  select coalesce(array_agg(f.job_id order by f.at), '{}'), array_agg(f.at order by f.at),
    (select e.at from ends e) + interval '1 microsecond'
  into ids, v_times, next from matching f;
  if cardinality(ids) > p_limit then
    ids := ids[1 : p_limit];
    next := v_times[p_limit + 1];
  end if;
end $$;

-- List failed tasks in the order in which they failed.
create or replace function holdfast.list_failed_tasks_by_time(p_filter jsonb, p_from timestamptz, p_until timestamptz,
  p_max_rows integer)
returns table (scan bigint, rows_read bigint, at timestamptz, task_id uuid, job_id uuid, policy_id bigint, owner text,
  finished_at timestamptz, error jsonb)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  if p_filter ?| '{queue,type}' then
    return query
    select k.id, count(*) over (partition by k.id), h.finished_at, h.id, coalesce(h.job_id, h.id), k.id, h.owner,
      h.finished_at, h.error
    from holdfast.task_policies k cross join lateral (
      select h.id, h.job_id, h.owner, h.finished_at, h.error from holdfast.history h
      -- Written so that only the index by policy matches, whatever the statistics say.
      where h.status = 'failed' and (h.policy_id, h.finished_at) >= (k.id, p_from)
        and (h.policy_id, h.finished_at) <= (k.id, p_until)
      order by h.policy_id, h.finished_at fetch first p_max_rows rows with ties) as h
    where (not p_filter ? 'queue' or k.queue = p_filter ->> 'queue')
      and (not p_filter ? 'type' or k.type = p_filter ->> 'type');
  else
    return query
    select 0::bigint, count(*) over (), h.finished_at, h.id, coalesce(h.job_id, h.id), h.policy_id, h.owner,
      h.finished_at, h.error
    from (
      select h.id, h.job_id, h.policy_id, h.owner, h.finished_at, h.error from holdfast.history h
      where h.status = 'failed' and h.finished_at >= p_from and h.finished_at <= p_until
      order by h.finished_at fetch first p_max_rows rows with ties) as h;
  end if;
  return query
  select -1::bigint, j.rows_read, j.finished_at, t.id, j.id, l.policy_id, t.owner, t.finished_at, t.error
  from (
    select j.id, j.finished_at, count(*) over () as rows_read from (
      select j.id, j.finished_at from holdfast.jobs j
      where j.finished_at is not null and not j.archived and j.finished_at >= p_from and j.finished_at <= p_until
      order by j.finished_at fetch first p_max_rows rows with ties) as j) as j
  left join (holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id) on t.job_id = j.id
    and t.status || '' = 'failed';
end $$;

-- List failed tasks of an error cause. Any attempt with the cause counts, as in the groups that the dashboard shows. A
-- task with many such attempts is returned many times.
create or replace function holdfast.list_failed_tasks_by_cause(p_cause text, p_from timestamptz, p_max_rows integer)
returns table (scan bigint, rows_read bigint, at timestamptz, task_id uuid, job_id uuid, policy_id bigint, owner text,
  finished_at timestamptz, error jsonb)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
  return query
  select 0::bigint, a.rows_read, a.ended_at, f.id, a.job_id, f.policy_id, f.owner, f.finished_at, f.error
  from (
    select a.task_id, a.job_id, a.ended_at, count(*) over () as rows_read from (
      select a.task_id, a.job_id, a.ended_at from holdfast.attempts a
      where a.fingerprint = p_cause and a.ended_at >= p_from
      order by a.ended_at fetch first p_max_rows rows with ties) as a) as a
  left join lateral (
    select h.id, h.policy_id, h.owner, h.finished_at, h.error from holdfast.history h where h.id = a.task_id
      and h.status || '' = 'failed'
    union all
    select t.id, l.policy_id, t.owner, t.finished_at, t.error from holdfast.tasks t join holdfast.jobs j
      on j.id = t.job_id and j.finished_at is not null
    join holdfast.lanes l on l.id = t.lane_id where t.id = a.task_id and t.status || '' = 'failed'
  ) as f on true;
end $$;

-- List the failed tasks of these jobs.
create or replace function holdfast.list_failed_tasks_by_job_ids(p_ids uuid[])
returns table (scan bigint, rows_read bigint, at timestamptz, task_id uuid, job_id uuid, policy_id bigint, owner text,
  finished_at timestamptz, error jsonb)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
begin
  return query
  select 0::bigint, 0::bigint, h.finished_at, h.id, coalesce(h.job_id, h.id), h.policy_id, h.owner, h.finished_at,
    h.error
  from holdfast.history h where (h.job_id = any (p_ids) or (h.id = any (p_ids) and h.job_id is null))
    and h.status || '' = 'failed'
  union all
  select 0, 0, j.finished_at, t.id, j.id, l.policy_id, t.owner, t.finished_at, t.error
  from holdfast.jobs j join holdfast.tasks t on t.job_id = j.id join holdfast.lanes l on l.id = t.lane_id
  where j.id = any (p_ids) and j.finished_at is not null and t.status || '' = 'failed';
end $$;

call holdfast.grant_execute('holdfast_worker', 'redrive');
call holdfast.grant_execute('service_role', 'redrive');
