-- Search and count jobs. search_query.sql describes how a search walks the tables.

-- Return how many rows of a table a search may scan. A word is searched in a text that is built for every row, which
-- is several times slower than any other condition, so the default is lower then. A caller that asks for more than the
-- default (a bulk action on all matches) gets it.
create or replace function holdfast.compute_search_row_limit(p_query jsonb, p_max_scanned integer) returns integer
language plpgsql immutable set search_path = '' as $$
begin
  return case when p_query ? 'text' and coalesce(p_max_scanned, 100000) <= 100000
    then least(greatest(coalesce(p_max_scanned, 100000), 100), 25000)
    else least(greatest(coalesce(p_max_scanned, 100000), 100), 1000000) end;
end $$;

-- Return the id below which not every row is scanned, or null when the search reaches the end of every table.
create or replace function holdfast.find_oldest_scanned_id(p_query jsonb, p_before uuid, p_max_scanned integer)
  returns uuid
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v record;
begin
  select * into v from holdfast.compile_search_query(p_query, p_before);
  if v.ids is not null or v.batches is not null or v.unfiltered then
    return null;
  end if;
  -- PostgreSQL has no max() for ids before 18.
  return (select f.id from (
    (select t.id from holdfast.tasks t where v.live and t.id < v.before and t.id >= v.since
      and (v.owners is null or (t.owner = any (v.owners) and t.job_id is null))
      and (not v.only_running or t.status = 'running')
      and (not v.only_scheduled or t.status = 'scheduled') order by t.id desc offset p_max_scanned limit 1)
    union all
    (select h.id from holdfast.history h where v.ended and h.id < v.before and h.id >= v.since
      and (v.owners is null or (h.owner = any (v.owners) and h.job_id is null))
      and (not v.only_failed or h.status = 'failed')
      order by h.id desc offset p_max_scanned limit 1)
    union all
    (select j.id from holdfast.jobs j where j.id < v.before and j.id >= v.since
      and (v.owners is null or j.owner = any (v.owners))
      order by j.id desc offset p_max_scanned / 10 limit 1)
  ) as f order by f.id desc limit 1);
end $$;

-- Return the ids of matching jobs, newest first, not below the floor.
create or replace function holdfast.search_job_ids(p_query jsonb, p_before uuid, p_floor uuid, p_limit integer,
  p_max_scanned integer)
returns setof uuid
language plpgsql stable set search_path = '' set jit = off set plan_cache_mode = force_custom_plan as $$
declare
  v record;
  v_floor uuid := coalesce(p_floor, '00000000-0000-0000-0000-000000000000');
begin
  select * into v from holdfast.compile_search_query(p_query, p_before);
  return query
  select f.id from (
    (select t.id from (
        select t.* from holdfast.tasks t where v.live and t.id < v.before and t.id >= greatest(v.since, v_floor)
          and (v.owners is null or (t.owner = any (v.owners) and t.job_id is null))
          and (v.ids is null or t.id = any (v.ids))
          and (v.batches is null or t.batch_id = any (v.batches)) and (not v.only_running or t.status = 'running')
          and (not v.only_scheduled or t.status = 'scheduled') and (v.errors is null or t.error is not null)
          and (v.policies is null or t.lane_id in (select l.id from holdfast.lanes l
            where l.policy_id = any (v.policies)))
        order by t.id desc limit case when v.unfiltered then null else p_max_scanned end) as t
      where t.job_id is null
        and (v.states is null or holdfast.list_search_states_of_status(t.status, t.failures + t.crashes) && v.states)
        and (v.not_states is null or not holdfast.list_search_states_of_status(t.status,
          t.failures + t.crashes) && v.not_states)
        and (v.not_owners is null or t.owner is null or t.owner <> all (v.not_owners))
        and (v.not_ids is null or t.id <> all (v.not_ids))
        and (v.workers is null or t.worker_id = any (v.workers))
        and (v.args is null or t.args @> v.args) and (v.result is null or t.output @> v.result)
        and (v.errors is null or holdfast.error_matches_search(t.error - v.hidden_error_fields, v.errors))
        and (v.not_errors is null or t.error is null
          or not holdfast.error_matches_search(t.error - v.hidden_error_fields, v.not_errors))
        and (v.patterns is null or holdfast.build_searchable_text(t.id,
          (select l.type from holdfast.lanes l where l.id = t.lane_id), t.owner,
            t.error - v.hidden_error_fields) ~ all (v.patterns))
        and (v.not_patterns is null or holdfast.build_searchable_text(t.id,
          (select l.type from holdfast.lanes l where l.id = t.lane_id), t.owner,
            t.error - v.hidden_error_fields) !~ all (v.not_patterns))
        and (v.args_any is null or t.args @> any (v.args_any))
        and (v.not_args is null or (t.args @> any (v.not_args)) is not true)
        and (v.result_any is null or t.output @> any (v.result_any))
        and (v.not_result is null or (t.output @> any (v.not_result)) is not true)
        and ((v.labels_any is null and v.label_names is null) or t.labels @> any (v.labels_any)
          or t.labels ?| v.label_names)
        and (v.not_labels is null or (t.labels @> any (v.not_labels)) is not true)
        and (v.not_label_names is null or (t.labels ?| v.not_label_names) is not true)
        and (v.min_attempt is null or t.attempt >= v.min_attempt)
        and (v.max_attempt is null or t.attempt <= v.max_attempt)
        and (v.min_wait is null or extract(epoch from coalesce(t.started_at, v.now) - t.due_at) >= v.min_wait)
        and (v.max_wait is null or extract(epoch from coalesce(t.started_at, v.now) - t.due_at) <= v.max_wait)
        and (v.min_run is null or extract(epoch from coalesce(t.finished_at, v.now) - t.started_at) >= v.min_run)
        and (v.max_run is null or extract(epoch from coalesce(t.finished_at, v.now) - t.started_at) <= v.max_run)
        and (v.extra is null
          or holdfast.matches_repeated_search_fields(v.extra, array[t.args], array[t.output], t.labels))
      limit p_limit)
    union all
    (select h.id from (
        select h.* from holdfast.history h where v.ended and h.id < v.before and h.id >= greatest(v.since, v_floor)
          and (v.owners is null or (h.owner = any (v.owners) and h.job_id is null))
          and (v.ids is null or h.id = any (v.ids))
          and (v.batches is null or h.batch_id = any (v.batches)) and (not v.only_failed or h.status = 'failed')
          and (v.errors is null or h.error is not null) and (v.policies is null or h.policy_id = any (v.policies))
        order by h.id desc limit case when v.unfiltered then null else p_max_scanned end) as h
      where h.job_id is null
        and (v.states is null or h.status = any (v.states) or 'ended' = any (v.states))
        and (v.not_states is null or not (h.status = any (v.not_states) or 'ended' = any (v.not_states)))
        and (v.not_owners is null or h.owner is null or h.owner <> all (v.not_owners))
        and (v.not_ids is null or h.id <> all (v.not_ids))
        and (v.workers is null or h.worker_id = any (v.workers))
        and (v.args is null or h.args @> v.args) and (v.result is null or h.output @> v.result)
        and (v.errors is null or holdfast.error_matches_search(h.error - v.hidden_error_fields, v.errors))
        and (v.not_errors is null or h.error is null
          or not holdfast.error_matches_search(h.error - v.hidden_error_fields, v.not_errors))
        and (v.patterns is null or holdfast.build_searchable_text(h.id,
          (select k.type from holdfast.task_policies k where k.id = h.policy_id), h.owner,
            h.error - v.hidden_error_fields) ~ all (v.patterns))
        and (v.not_patterns is null or holdfast.build_searchable_text(h.id,
          (select k.type from holdfast.task_policies k where k.id = h.policy_id), h.owner,
            h.error - v.hidden_error_fields) !~ all (v.not_patterns))
        and (v.args_any is null or h.args @> any (v.args_any))
        and (v.not_args is null or (h.args @> any (v.not_args)) is not true)
        and (v.result_any is null or h.output @> any (v.result_any))
        and (v.not_result is null or (h.output @> any (v.not_result)) is not true)
        and ((v.labels_any is null and v.label_names is null) or h.labels @> any (v.labels_any)
          or h.labels ?| v.label_names)
        and (v.not_labels is null or (h.labels @> any (v.not_labels)) is not true)
        and (v.not_label_names is null or (h.labels ?| v.not_label_names) is not true)
        and (v.min_attempt is null or h.attempt >= v.min_attempt)
        and (v.max_attempt is null or h.attempt <= v.max_attempt)
        and (v.min_wait is null or extract(epoch from coalesce(h.started_at, v.now) - h.due_at) >= v.min_wait)
        and (v.max_wait is null or extract(epoch from coalesce(h.started_at, v.now) - h.due_at) <= v.max_wait)
        and (v.min_run is null or extract(epoch from coalesce(h.finished_at, v.now) - h.started_at) >= v.min_run)
        and (v.max_run is null or extract(epoch from coalesce(h.finished_at, v.now) - h.started_at) <= v.max_run)
        and (v.extra is null
          or holdfast.matches_repeated_search_fields(v.extra, array[h.args], array[h.output], h.labels))
      limit p_limit)
    union all
    (select j.id from (
        select j.* from holdfast.jobs j where j.id < v.before and j.id >= greatest(v.since, v_floor)
          and (v.owners is null or j.owner = any (v.owners)) and (v.ids is null or j.id = any (v.ids))
          and (v.batches is null or j.batch_id = any (v.batches))
        order by j.id desc limit case when v.unfiltered then null else p_max_scanned / 10 end) as j
      where (v.states is null or holdfast.list_search_states_of_status(j.status, 0) && v.states
        or (j.finished_at is null and exists (
          select from holdfast.tasks t where t.job_id = j.id
            and holdfast.list_search_states_of_status(t.status, t.failures + t.crashes) && v.states
            and t.finished_at is null)))
        and (v.not_states is null or not holdfast.list_search_states_of_status(j.status, 0) && v.not_states)
        and (v.not_owners is null or j.owner is null or j.owner <> all (v.not_owners))
        and (v.not_ids is null or j.id <> all (v.not_ids))
        and (v.policies is null or (j.type = any (v.types) and not p_query ? 'queue')
          or holdfast.job_has_task_policy(j.id, v.policies))
        and (v.not_types is null or j.type <> all (v.not_types))
        and (v.workers is null or exists (select from holdfast.tasks t where t.job_id = j.id
          and t.worker_id = any (v.workers))
          or exists (select from holdfast.history h where h.job_id = j.id and h.worker_id = any (v.workers)))
        and (v.args is null or j.params @> v.args
          or exists (select from holdfast.tasks t where t.job_id = j.id and t.args @> v.args)
          or exists (select from holdfast.history h where h.job_id = j.id and h.args @> v.args))
        and (v.result is null or j.output @> v.result
          or exists (select from holdfast.tasks t where t.job_id = j.id and t.output @> v.result)
          or exists (select from holdfast.history h where h.job_id = j.id and h.output @> v.result))
        and (v.errors is null or holdfast.job_error_matches_search(j.id, j.error, v.errors, v.hidden_error_fields))
        and (v.not_errors is null or not holdfast.job_error_matches_search(j.id, j.error, v.not_errors,
          v.hidden_error_fields))
        and (v.patterns is null or holdfast.build_searchable_text(j.id, j.type, j.owner,
            j.error - v.hidden_error_fields) ~ all (v.patterns))
        and (v.not_patterns is null or holdfast.build_searchable_text(j.id, j.type, j.owner,
            j.error - v.hidden_error_fields) !~ all (v.not_patterns))
        and ((v.labels_any is null and v.label_names is null) or j.labels @> any (v.labels_any)
          or j.labels ?| v.label_names)
        and (v.not_labels is null or (j.labels @> any (v.not_labels)) is not true)
        and (v.not_label_names is null or (j.labels ?| v.not_label_names) is not true)
        and (v.min_wait is null or extract(epoch
          from coalesce(j.started_at, v.now) - holdfast.get_id_time(j.id)) >= v.min_wait)
        and (v.max_wait is null or extract(epoch
          from coalesce(j.started_at, v.now) - holdfast.get_id_time(j.id)) <= v.max_wait)
        and (v.min_run is null or extract(epoch from coalesce(j.finished_at, v.now) - j.started_at) >= v.min_run)
        and (v.max_run is null or extract(epoch from coalesce(j.finished_at, v.now) - j.started_at) <= v.max_run)
        and ((coalesce(v.min_attempt, v.max_attempt) is null
          and coalesce(v.args_any, v.not_args, v.result_any, v.not_result) is null
          and v.extra is null) or holdfast.job_tasks_match_search(
            j.id, j.params, j.labels, v.args_any, v.not_args, v.result_any, v.not_result,
            v.min_attempt, v.max_attempt, v.extra))
      limit p_limit)
  ) as f order by f.id desc limit p_limit;
end $$;

-- Return whether a job has a task with one of these policies (queue and task type).
create or replace function holdfast.job_has_task_policy(p_job uuid, p_policies bigint[]) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return exists (select from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id where t.job_id = p_job
    and l.policy_id = any (p_policies))
    or exists (select from holdfast.history h where h.job_id = p_job and h.policy_id = any (p_policies));
end $$;

-- Return whether the tasks of a job match the conditions of a search: one task must match each condition, and none an
-- excluded one.
create or replace function holdfast.job_tasks_match_search(
  p_job uuid, p_params jsonb, p_labels jsonb, p_args_any jsonb[], p_not_args jsonb[], p_result_any jsonb[],
    p_not_result jsonb[],
  p_min_attempt double precision, p_max_attempt double precision, p_extra jsonb) returns boolean
language plpgsql stable set search_path = '' as $$
declare
  v_args jsonb[];
  v_outputs jsonb[];
  v_attempt integer;
begin
  select array_agg(f.args), array_agg(f.output), max(f.attempt) into v_args, v_outputs, v_attempt from (
    select p_params as args, null::jsonb as output, null::integer as attempt
    union all select t.args, t.output, t.attempt from holdfast.tasks t where t.job_id = p_job
    union all select h.args, h.output, h.attempt from holdfast.history h where h.job_id = p_job) as f;
  return (p_args_any is null or exists (select from unnest(v_args) as a where a @> any (p_args_any)))
    and (p_not_args is null or not exists (select from unnest(v_args) as a where a @> any (p_not_args)))
    and (p_result_any is null or exists (select from unnest(v_outputs) as a where a @> any (p_result_any)))
    and (p_not_result is null or not exists (select from unnest(v_outputs) as a where a @> any (p_not_result)))
    and (p_min_attempt is null or v_attempt >= p_min_attempt)
    and (p_max_attempt is null or v_attempt <= p_max_attempt)
    and (p_extra is null or holdfast.matches_repeated_search_fields(p_extra, v_args, v_outputs, p_labels));
end $$;

-- Return whether the error of a job, or of one of its tasks, has one of the searched types or texts, without the hidden
-- fields.
create or replace function holdfast.job_error_matches_search(p_job uuid, p_error jsonb, p_words text[],
  p_hidden_fields text[]) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return holdfast.error_matches_search(p_error - p_hidden_fields, p_words)
    or exists (select from holdfast.tasks t where t.job_id = p_job and t.error is not null
      and holdfast.error_matches_search(t.error - p_hidden_fields, p_words))
    or exists (select from holdfast.history h where h.job_id = p_job and h.error is not null
      and holdfast.error_matches_search(h.error - p_hidden_fields, p_words));
end $$;

-- Return a page: {rows, next, truncated, scan}. `next` is p_before of the following page, null at the end. `truncated`
-- says that the search stopped after p_max_scanned rows before the page was full. It scans a few rows first, which fill
-- the page of most searches, and all others only if they did not.
create or replace function holdfast.search_jobs(
  p_query jsonb default '{}', p_before uuid default null, p_limit integer default 50,
    p_max_scanned integer default 100000) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_limit integer := least(greatest(coalesce(p_limit, 50), 1), 1000);
  v_max_scanned integer := holdfast.compute_search_row_limit(p_query, p_max_scanned);
  v_scanned integer := least(v_max_scanned, 100 * v_limit);
  v_floor uuid := holdfast.find_oldest_scanned_id(p_query, p_before, v_scanned);
  v_ids uuid[] := array(select i from holdfast.search_job_ids(
    p_query, p_before, v_floor, v_limit + 1, v_scanned) as i);
  v_last_floor uuid;
  v_more boolean;
begin
  if cardinality(v_ids) <= v_limit and v_floor is not null and v_scanned < v_max_scanned then
    v_last_floor := holdfast.find_oldest_scanned_id(p_query, v_floor, v_max_scanned - v_scanned);
    v_ids := v_ids || array(select i from holdfast.search_job_ids(
      p_query, v_floor, v_last_floor, v_limit + 1 - cardinality(v_ids), v_max_scanned - v_scanned) as i);
    v_floor := v_last_floor;
  end if;
  v_more := cardinality(v_ids) > v_limit;
  v_ids := v_ids[1:v_limit];
  return jsonb_build_object('rows', holdfast.build_job_rows(v_ids),
    'next', case when v_more then v_ids[v_limit] else v_floor end, 'truncated', not v_more
      and v_floor is not null, 'scan', v_max_scanned);
end $$;

-- Return jobs as rows of a list, newest first.
create or replace function holdfast.build_job_rows(p_ids uuid[]) returns jsonb
language plpgsql stable set search_path = '' set jit = off as $$
begin
  return (
    select coalesce(jsonb_agg(f.body order by f.id desc), '[]') from (
      select j.id, (holdfast.job_to_json(j) - 'event_seq')
        || jsonb_build_object('single', false, 'state', j.status, 'batch', j.batch_id,
        'queue', (select l.queue from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id where t.job_id = j.id
          limit 1),
        'due_at', holdfast.get_id_time(j.id)) as body
      from holdfast.jobs j where j.id = any (p_ids)
      union all
      select t.id, (holdfast.single_task_to_job_json(t) - 'event_seq')
        || jsonb_build_object('single', true, 'queue', t.queue, 'batch', t.batch_id,
        'state', case when t.status = 'scheduled' and t.failures + t.crashes > 0 then 'retrying' else t.status end,
        'attempt', t.attempt, 'failures', t.failures, 'due_at', t.due_at, 'priority', t.priority, 'limit_key',
          t.limit_key,
        'worker', (select w.name from holdfast.workers w where w.id = t.worker_id))
      from holdfast.all_tasks t where t.id = any (p_ids) and t.single
    ) as f);
end $$;

-- Count matching jobs: {count, exact, at_least}. The count is exact up to p_max_rows. Above, or where the search stopped
-- before the oldest job, it is an estimate from a sample; `at_least` says that the sample had no more than was counted.
-- A search that finds many matches in a few rows, and cannot reach the oldest job, scans no more rows: the sample is
-- better then. One that finds few scans on, because a sample may have none of them.
create or replace function holdfast.count_jobs(p_query jsonb default '{}', p_max_rows integer default 10000,
  p_max_scanned integer default 100000)
returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
declare
  v_max_rows integer := least(greatest(coalesce(p_max_rows, 10000), 1), 100000);
  v_max_scanned integer := holdfast.compute_search_row_limit(p_query, p_max_scanned);
  v_scanned integer := least(v_max_scanned, v_max_rows / 2);
  v_min_matches constant integer := 125;
  v_floor uuid := holdfast.find_oldest_scanned_id(p_query, null, v_scanned);
  v_count bigint := (select count(*) from holdfast.search_job_ids(
    p_query, null, v_floor, v_max_rows + 1, v_scanned));
  v_last_floor uuid;
  v_estimate bigint;
begin
  if v_count <= v_max_rows and v_floor is not null and v_scanned < v_max_scanned then
    v_last_floor := holdfast.find_oldest_scanned_id(p_query, v_floor, v_max_scanned - v_scanned);
    if v_last_floor is null or v_count < v_min_matches then
      v_count := v_count + (select count(*) from holdfast.search_job_ids(
        p_query, v_floor, v_last_floor, v_max_rows + 1 - v_count::integer, v_max_scanned - v_scanned));
      v_floor := v_last_floor;
    end if;
  end if;
  if v_count <= v_max_rows and v_floor is null then
    return jsonb_build_object('count', v_count, 'exact', true, 'at_least', false);
  end if;
  v_estimate := holdfast.estimate_matching_jobs(p_query);
  return jsonb_build_object('count', greatest(least(v_count, v_max_rows), v_estimate), 'exact', false,
    'at_least', coalesce(v_estimate <= v_count, true));
end $$;

-- Estimate how many jobs match a query: look for matches in a sample of all jobs. Null if the query names jobs itself.
create or replace function holdfast.estimate_matching_jobs(p_query jsonb) returns bigint
language plpgsql stable set search_path = '' set jit = off as $$
declare
  v_sampled_pages constant integer := 150;
  v_max_sampled constant integer := 3000;
  v_percent double precision := holdfast.compute_sample_percent(v_sampled_pages, 'holdfast.tasks', 'holdfast.jobs',
    'holdfast.history');
  v_ids uuid[];
  v_matches bigint;
begin
  if p_query ? 'job' then
    return null;
  end if;
  v_ids := array(
    select t.id from holdfast.tasks t tablesample system (v_percent) repeatable (1) where t.job_id is null
    union all
    select h.id from holdfast.history h tablesample system (v_percent) repeatable (1) where h.job_id is null
    union all
    select j.id from holdfast.jobs j tablesample system (v_percent) repeatable (1));
  if cardinality(v_ids) = 0 then
    return 0;
  end if;
  -- Fewer ids, spread evenly: by a hash, which is the same next time.
  if cardinality(v_ids) > v_max_sampled then
    v_percent := v_percent * v_max_sampled / cardinality(v_ids);
    v_ids := array(select i from unnest(v_ids) as i order by hashtext(i::text) limit v_max_sampled);
  end if;
  select count(*) into v_matches from holdfast.search_job_ids(
    p_query || jsonb_build_object('job', jsonb_build_object('in', to_jsonb(v_ids))), null, null, v_max_sampled,
    v_max_sampled * 10);
  return round(v_matches * 100 / v_percent);
end $$;

call holdfast.grant_execute('holdfast_worker', 'search_jobs', 'count_jobs');
call holdfast.grant_execute('service_role', 'search_jobs', 'count_jobs');
