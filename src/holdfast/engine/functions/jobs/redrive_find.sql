-- Which failed jobs a redrive means, oldest failure first, from a bounded number of rows.
--
-- Failures are walked through indexes in the order of their time: all of them, those of each kind where a type or a queue is asked
-- for, or the attempts of a cause; and the jobs that ended but are not archived yet. A walk ends after p_most rows, never between two of
-- the same moment. What lies behind the end of any walk is left for the next call, which begins there: nothing is passed over.

create or replace function holdfast.failed_walk(p_filter jsonb, p_from timestamptz, p_until timestamptz, p_most integer)
returns table (walk bigint, looked bigint, at timestamptz, task_id uuid, job_id uuid, kind_id bigint, owner text, finished_at timestamptz, error jsonb)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  if p_filter ?| '{queue,type}' then
    return query
    select k.id, count(*) over (partition by k.id), h.finished_at, h.id, coalesce(h.job_id, h.id), k.id, h.owner, h.finished_at, h.error
    from holdfast.kinds k cross join lateral (
      select h.id, h.job_id, h.owner, h.finished_at, h.error from holdfast.history h
      -- Said so that only the index of kinds fits, whatever is known of the table.
      where h.status = 'failed' and (h.kind_id, h.finished_at) >= (k.id, p_from) and (h.kind_id, h.finished_at) <= (k.id, p_until)
      order by h.kind_id, h.finished_at fetch first p_most rows with ties) as h
    where (not p_filter ? 'queue' or k.queue = p_filter ->> 'queue') and (not p_filter ? 'type' or k.type = p_filter ->> 'type');
  else
    return query
    select 0::bigint, count(*) over (), h.finished_at, h.id, coalesce(h.job_id, h.id), h.kind_id, h.owner, h.finished_at, h.error
    from (
      select h.id, h.job_id, h.kind_id, h.owner, h.finished_at, h.error from holdfast.history h
      where h.status = 'failed' and h.finished_at >= p_from and h.finished_at <= p_until
      order by h.finished_at fetch first p_most rows with ties) as h;
  end if;
  return query
  select -1::bigint, j.looked, j.finished_at, t.id, j.id, l.kind_id, t.owner, t.finished_at, t.error
  from (
    select j.id, j.finished_at, count(*) over () as looked from (
      select j.id, j.finished_at from holdfast.jobs j
      where j.finished_at is not null and not j.archived and j.finished_at >= p_from and j.finished_at <= p_until
      order by j.finished_at fetch first p_most rows with ties) as j) as j
  left join (holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id) on t.job_id = j.id and t.status || '' = 'failed';
end $$;

-- Any attempt of a cause counts, as it does in the groups that people see. A task that was tried often is met often.
create or replace function holdfast.failed_of_cause(p_cause text, p_from timestamptz, p_most integer)
returns table (walk bigint, looked bigint, at timestamptz, task_id uuid, job_id uuid, kind_id bigint, owner text, finished_at timestamptz, error jsonb)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
  return query
  select 0::bigint, a.looked, a.ended_at, f.id, a.job_id, f.kind_id, f.owner, f.finished_at, f.error
  from (
    select a.task_id, a.job_id, a.ended_at, count(*) over () as looked from (
      select a.task_id, a.job_id, a.ended_at from holdfast.attempts a
      where a.fingerprint = p_cause and a.ended_at >= p_from
      order by a.ended_at fetch first p_most rows with ties) as a) as a
  left join lateral (
    select h.id, h.kind_id, h.owner, h.finished_at, h.error from holdfast.history h where h.id = a.task_id and h.status || '' = 'failed'
    union all
    select t.id, l.kind_id, t.owner, t.finished_at, t.error from holdfast.tasks t join holdfast.jobs j on j.id = t.job_id and j.finished_at is not null
    join holdfast.lanes l on l.id = t.lane_id where t.id = a.task_id and t.status || '' = 'failed'
  ) as f on true;
end $$;

-- By id there is nothing to walk.
create or replace function holdfast.failed_of_ids(p_ids uuid[])
returns table (walk bigint, looked bigint, at timestamptz, task_id uuid, job_id uuid, kind_id bigint, owner text, finished_at timestamptz, error jsonb)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
begin
  return query
  select 0::bigint, 0::bigint, h.finished_at, h.id, coalesce(h.job_id, h.id), h.kind_id, h.owner, h.finished_at, h.error
  from holdfast.history h where (h.job_id = any (p_ids) or (h.id = any (p_ids) and h.job_id is null)) and h.status || '' = 'failed'
  union all
  select 0, 0, j.finished_at, t.id, j.id, l.kind_id, t.owner, t.finished_at, t.error
  from holdfast.jobs j join holdfast.tasks t on t.job_id = j.id join holdfast.lanes l on l.id = t.lane_id
  where j.id = any (p_ids) and j.finished_at is not null and t.status || '' = 'failed';
end $$;

-- The jobs, at most p_limit, and from when on others were not looked at; null: all were.
create or replace function holdfast.find_failed(p_filter jsonb, p_limit integer, out ids uuid[], out next timestamptz)
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v_user text := holdfast.calling_user();
  v_since timestamptz := coalesce(holdfast.time_in(p_filter, 'since'), '-infinity');
  v_until timestamptz := coalesce(holdfast.time_in(p_filter, 'until'), 'infinity');
  v_from timestamptz := coalesce(holdfast.time_in(p_filter, 'from'), '-infinity');
  v_picks boolean := v_user is not null or p_filter ?| '{owner,error_type,fingerprint}';
  v_kinds bigint := case when p_filter ?| '{queue,type}' then (select count(*) from holdfast.kinds k
    where (not p_filter ? 'queue' or k.queue = p_filter ->> 'queue') and (not p_filter ? 'type' or k.type = p_filter ->> 'type')) else 1 end;
  -- Where every row fits, as many as are asked for; else some thousands. A type or a queue of very many kinds shares them out.
  v_most integer := greatest(case when v_picks then greatest(p_limit, 2000) else p_limit + 1 end / greatest(v_kinds / 10, 1), 20);
  v_times timestamptz[];
begin
  with walked as materialized (
    select * from holdfast.failed_of_ids(array(select jsonb_array_elements_text(p_filter -> 'ids')::uuid)) where p_filter ? 'ids'
    union all
    select * from holdfast.failed_of_cause(p_filter ->> 'fingerprint', v_from, v_most) where p_filter ? 'fingerprint' and not p_filter ? 'ids'
    union all
    select * from holdfast.failed_walk(p_filter, greatest(v_since, v_from), v_until, v_most) where not p_filter ?| '{ids,fingerprint}'
  ), ends as materialized (
    select min(e.last) as at from (select max(w.at) as last from walked w group by w.walk having max(w.looked) >= v_most) as e
  ), fitting as (
    select w.job_id, min(w.at) as at from walked w join holdfast.kinds k on k.id = w.kind_id
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
  select coalesce(array_agg(f.job_id order by f.at), '{}'), array_agg(f.at order by f.at), (select e.at from ends e) + interval '1 microsecond'
  into ids, v_times, next from fitting f;
  if cardinality(ids) > p_limit then
    ids := ids[1 : p_limit];
    next := v_times[p_limit + 1];
  end if;
end $$;
