-- Search queries: from the JSON filter to conditions on the tables. search_jobs.sql runs them.
--
-- holdfast/search.py compiles the search text into a filter: per field {"in": [...], "not": [...]}, or comparisons.
-- Jobs are stored in three places: `jobs`, unfinished single tasks in `tasks`, and ended single tasks in `history`. A
-- search walks each from the newest id down and scans at most p_max_scanned rows of it. The floor is the id below which
-- one of them was not scanned, and the page ends there. So pages follow each other by id, which is unique, and no job
-- is skipped or shown twice.

-- Compile a filter into the conditions of search_job_ids. A null output column means no condition.
create or replace function holdfast.compile_search_query(
  p_query jsonb, p_before uuid, out before uuid, out since uuid, out ids uuid[], out not_ids uuid[],
  out owners text[], out not_owners text[], out states text[], out not_states text[], out policies bigint[],
  out types text[], out not_types text[], out errors text[], out not_errors text[], out workers bigint[],
  out batches uuid[], out args jsonb, out result jsonb, out only_failed boolean, out only_running boolean,
  out only_scheduled boolean, out live boolean, out ended boolean, out patterns text[], out not_patterns text[],
  out args_any jsonb[], out not_args jsonb[], out result_any jsonb[], out not_result jsonb[], out labels_any jsonb[],
  out label_names text[], out not_labels jsonb[], out not_label_names text[], out min_attempt double precision,
  out max_attempt double precision, out min_wait double precision, out max_wait double precision,
  out min_run double precision, out max_run double precision, out extra jsonb, out unfiltered boolean,
  out hidden_error_fields text[], out now timestamptz)
language plpgsql stable set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  now := holdfast.now();
  before := least(coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
    holdfast.build_smallest_id_at(p_query -> 'until', now));
  since := coalesce(holdfast.build_smallest_id_at(p_query -> 'since', now), '00000000-0000-0000-0000-000000000000');
  owners := case when v_user is not null then array[v_user]
    else holdfast.jsonb_array_to_text_array(p_query #> '{owner,in}') end;
  not_owners := holdfast.jsonb_array_to_text_array(p_query #> '{owner,not}');
  states := holdfast.jsonb_array_to_text_array(p_query #> '{state,in}');
  not_states := holdfast.jsonb_array_to_text_array(p_query #> '{state,not}');
  types := holdfast.jsonb_array_to_text_array(p_query #> '{task,in}');
  not_types := holdfast.jsonb_array_to_text_array(p_query #> '{task,not}');
  errors := holdfast.jsonb_array_to_text_array(p_query #> '{error,in}');
  not_errors := holdfast.jsonb_array_to_text_array(p_query #> '{error,not}');
  batches := holdfast.jsonb_array_to_text_array(p_query #> '{batch,in}')::uuid[];
  ids := holdfast.find_ids_named_by_query(p_query);
  not_ids := holdfast.jsonb_array_to_text_array(p_query #> '{job,not}')::uuid[];
  if p_query ?| '{queue,task}' then
    policies := array(select k.id from holdfast.task_policies k
      where (p_query #> '{queue,in}' is null or p_query #> '{queue,in}' ? k.queue)
        and (p_query #> '{queue,not}' is null or not p_query #> '{queue,not}' ? k.queue)
        and (types is null or k.type = any (types)) and (not_types is null or k.type <> all (not_types)));
  end if;
  if p_query ? 'worker' then
    workers := array(select w.id from holdfast.workers w where p_query #> '{worker,in}' ? w.name);
  end if;
  args := nullif(p_query #> '{args,all}', '{}');
  result := nullif(p_query #> '{result,all}', '{}');
  -- States with an index of their own, so that rare jobs are found among many.
  only_failed := coalesce(states <@ '{failed}', false);
  only_running := coalesce(states <@ '{running}', false);
  only_scheduled := coalesce(states <@ '{scheduled,retrying}', false);
  live := states is null or not states <@ '{succeeded,partial,failed,cancelled,ended}';
  ended := states is null or states && '{succeeded,partial,failed,cancelled,ended}';
  patterns := holdfast.build_word_patterns(p_query #> '{text,in}');
  not_patterns := holdfast.build_word_patterns(p_query #> '{text,not}');
  args_any := holdfast.jsonb_array_to_sql_array(p_query #> '{args,in,0}');
  not_args := holdfast.jsonb_array_to_sql_array(p_query #> '{args,not}');
  result_any := holdfast.jsonb_array_to_sql_array(p_query #> '{result,in,0}');
  not_result := holdfast.jsonb_array_to_sql_array(p_query #> '{result,not}');
  labels_any := holdfast.build_label_patterns(p_query #> '{labels,in,0}');
  label_names := holdfast.list_label_names(p_query #> '{labels,in,0}');
  not_labels := holdfast.build_label_patterns(jsonb_path_query_array(p_query, '$.labels.not[*][*]'));
  not_label_names := holdfast.list_label_names(jsonb_path_query_array(p_query, '$.labels.not[*][*]'));
  select b.min_value, b.max_value into min_attempt, max_attempt
    from holdfast.parse_comparison_bounds(p_query -> 'attempt') as b;
  select b.min_value, b.max_value into min_wait, max_wait from holdfast.parse_comparison_bounds(p_query -> 'wait') as b;
  select b.min_value, b.max_value into min_run, max_run from holdfast.parse_comparison_bounds(p_query -> 'run') as b;
  -- The second and further lists of the same field need a function call per row.
  extra := nullif(jsonb_strip_nulls(jsonb_build_object('args', nullif((p_query #> '{args,in}') - 0, '[]'),
    'result', nullif((p_query #> '{result,in}') - 0, '[]'), 'labels', nullif((p_query #> '{labels,in}') - 0, '[]'))),
      '{}');
  -- The message of an error may contain secrets that the caller sees masked. A search must not confirm guesses.
  hidden_error_fields := case when p_query -> 'skip_error_messages' = 'true' then '{message}' else '{}' end;
  unfiltered := p_query - '{since,until}'::text[] = '{}'
    or (only_failed and p_query - '{since,until,state}'::text[] = '{}');
end $$;

-- Return a JSON array of texts as a SQL array; null for any other value.
create or replace function holdfast.jsonb_array_to_text_array(p_list jsonb) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_list) = 'array' then array(select jsonb_array_elements_text(p_list)) end;
end $$;

-- Return the smallest possible id of a time. Ids start with their time.
create or replace function holdfast.build_smallest_id_at(p_time jsonb, p_now timestamptz) returns uuid
language plpgsql stable set search_path = '' as $$
declare
  v_at timestamptz := coalesce(holdfast.parse_time_field(p_time, 'at'),
    p_now - holdfast.parse_number_field(p_time, 'ago_s', 0, 4e9) * interval '1 second');
begin
  if v_at is null then
    return null;
  end if;
  return (lpad(to_hex(floor(extract(epoch from least(
    greatest(v_at, 'epoch'::timestamptz), '9999-01-01Z'::timestamptz)) * 1000)::bigint),
    12, '0') || '00000000000000000000')::uuid;
end $$;

-- Return the ids of the jobs that the query selects by id, by idempotency key or by the cause of a failed attempt.
-- Null means that the query has no such condition.
create or replace function holdfast.find_ids_named_by_query(p_query jsonb) returns uuid[]
language plpgsql stable set search_path = '' as $$
declare
  v_ids uuid[] := holdfast.jsonb_array_to_text_array(p_query #> '{job,in}')::uuid[];
  v_matching uuid[];
begin
  if p_query #> '{key,in}' is not null then
    v_matching := array(select k.job_id from holdfast.idempotency_keys k
      where k.key = any (holdfast.jsonb_array_to_text_array(p_query #> '{key,in}')) limit 10000);
    v_ids := case when v_ids is null then v_matching
      else array(select unnest(v_ids) intersect select unnest(v_matching)) end;
  end if;
  if p_query #> '{cause,in}' is not null then
    v_matching := array(select distinct a.job_id from (select a.job_id from holdfast.attempts a
      where a.fingerprint = any (holdfast.jsonb_array_to_text_array(p_query #> '{cause,in}')) order by a.ended_at desc
        limit 100000) as a);
    v_ids := case when v_ids is null then v_matching
      else array(select unnest(v_ids) intersect select unnest(v_matching)) end;
  end if;
  return v_ids;
end $$;

-- Return the values of the search field `state` that match a task with this status.
create or replace function holdfast.list_search_states_of_status(p_status text, p_failures integer) returns text[]
language sql immutable parallel safe as $$
  select case p_status
    when 'scheduled' then case when p_failures > 0 then array['scheduled', 'retrying', 'queued', 'alive']
      else array['scheduled', 'queued', 'alive'] end
    when 'ready' then array['ready', 'queued', 'alive']
    when 'waiting' then array['waiting', 'queued', 'alive']
    when 'queued' then array['queued', 'alive']
    when 'running' then array['running', 'alive']
    else array[p_status, 'ended'] end
$$;

-- Return whether an error has one of the searched types, or contains one of the searched texts.
create or replace function holdfast.error_matches_search(p_error jsonb, p_words text[]) returns boolean
language plpgsql immutable set search_path = '' as $$
declare
  v_text text := lower(coalesce(p_error ->> 'type', '') || ': ' || coalesce(p_error ->> 'message', ''));
  v_word text;
begin
  -- A loop without a query: a search calls this for up to 100,000 rows.
  foreach v_word in array p_words loop
    if p_error ->> 'type' = v_word or position(lower(v_word) in v_text) > 0 then
      return true;
    end if;
  end loop;
  return false;
end $$;

-- Return the smallest and the largest value that the comparisons allow; null where they have no bound.
create or replace function holdfast.parse_comparison_bounds(p_tests jsonb, out min_value double precision,
  out max_value double precision)
language plpgsql immutable set search_path = '' as $$
begin
  select max(case when t.op in ('>=', '=') then t.value when t.op = '>' then t.value + 1e-6 end),
    min(case when t.op in ('<=', '=') then t.value when t.op = '<' then t.value - 1e-6 end)
  into min_value, max_value from jsonb_to_recordset(p_tests) as t (op text, value double precision);
end $$;

-- Return the elements of a JSON array as a SQL array; null for any other value.
create or replace function holdfast.jsonb_array_to_sql_array(p_list jsonb) returns jsonb[]
language plpgsql immutable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_list) = 'array' then array(select jsonb_array_elements(p_list)) end;
end $$;

-- Return labels {name, values} as objects of one label each, for the containment operator.
create or replace function holdfast.build_label_patterns(p_list jsonb) returns jsonb[]
language plpgsql immutable set search_path = '' as $$
begin
  return (select array_agg(jsonb_build_object(l ->> 'name', v))
    from jsonb_array_elements(p_list) as l, jsonb_array_elements(l -> 'values') as v);
end $$;

-- Return the names of the labels that are searched without a value.
create or replace function holdfast.list_label_names(p_list jsonb) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return (select array_agg(l ->> 'name') from jsonb_array_elements(p_list) as l where not l ? 'values');
end $$;

-- Return whether each additional list of a repeated search field has at least one element that matches.
create or replace function holdfast.matches_repeated_search_fields(
  p_extra jsonb, p_args jsonb[], p_outputs jsonb[], p_labels jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return not exists (select from jsonb_array_elements(p_extra -> 'args') as one where not exists (
      select from unnest(p_args) as a where a @> any (holdfast.jsonb_array_to_sql_array(one.value))))
    and not exists (select from jsonb_array_elements(p_extra -> 'result') as one where not exists (
      select from unnest(p_outputs) as a where a @> any (holdfast.jsonb_array_to_sql_array(one.value))))
    and not exists (select from jsonb_array_elements(p_extra -> 'labels') as one
      where (p_labels @> any (holdfast.build_label_patterns(one.value))
        or p_labels ?| holdfast.list_label_names(one.value)) is not true);
end $$;

-- Return one regular expression for each list of words. It matches a text that contains one of the words literally.
create or replace function holdfast.build_word_patterns(p_lists jsonb) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  if jsonb_typeof(p_lists) is distinct from 'array' then
    return null;
  end if;
  return array(select string_agg(regexp_replace(lower(w), '([][\\.(){}*+?^$|])', '\\\1', 'g'), '|')
    from jsonb_array_elements(p_lists) with ordinality as l (words, n), jsonb_array_elements_text(l.words) as w
      group by l.n);
end $$;

-- Return the text in which words are searched.
create or replace function holdfast.build_searchable_text(
  p_id uuid, p_type text, p_owner text, p_error jsonb) returns text
language sql stable parallel safe as $$
  select pg_catalog.lower(pg_catalog.concat_ws(' ', p_id::pg_catalog.text, p_type, p_owner,
    p_error operator(pg_catalog.->>) 'type',
    p_error operator(pg_catalog.->>) 'message'))
$$;
