-- Search: the jobs that fit what somebody typed, newest first, never looking at more than a bounded number of rows.
--
-- The query is what search.py makes of the text: per field {"in": [...], "not": [...]}, or tests. Jobs are in three
-- places: `jobs`, single tasks that live, single tasks that ended. Each is walked from the newest id down, at most
-- p_scan rows of it; the floor is the id below which one of them was not looked at, and the page ends there. So pages
-- follow each other by id, which is unique, and nothing is passed over or shown twice.

-- What a query means in terms of the tables.
create or replace function holdfast.search_plan(p_query jsonb, p_before uuid,
  out before uuid, out since uuid, out ids uuid[], out not_ids uuid[], out owners text[], out not_owners text[],
  out states text[], out not_states text[], out kinds bigint[], out types text[], out not_types text[], out errors text[],
  out not_errors text[], out workers bigint[], out batches uuid[], out args jsonb, out result jsonb, out only_failed boolean, out only_running boolean, out only_scheduled boolean,
  out live boolean, out ended boolean, out patterns text[], out not_patterns text[], out args_any jsonb[],
  out not_args jsonb[], out result_any jsonb[], out not_result jsonb[], out labels_any jsonb[], out label_names text[], out not_labels jsonb[],
  out not_label_names text[], out attempt_least double precision, out attempt_most double precision, out wait_least double precision,
  out wait_most double precision, out run_least double precision, out run_most double precision, out more jsonb, out plain boolean, out now timestamptz)
language plpgsql stable set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
begin
  now := holdfast.now();
  before := least(coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), holdfast.search_bound(p_query -> 'until', now));
  since := coalesce(holdfast.search_bound(p_query -> 'since', now), '00000000-0000-0000-0000-000000000000');
  owners := case when v_user is not null then array[v_user] else holdfast.search_names(p_query #> '{owner,in}') end;
  not_owners := holdfast.search_names(p_query #> '{owner,not}');
  states := holdfast.search_names(p_query #> '{state,in}');
  not_states := holdfast.search_names(p_query #> '{state,not}');
  types := holdfast.search_names(p_query #> '{task,in}');
  not_types := holdfast.search_names(p_query #> '{task,not}');
  errors := holdfast.search_names(p_query #> '{error,in}');
  not_errors := holdfast.search_names(p_query #> '{error,not}');
  batches := holdfast.search_names(p_query #> '{batch,in}')::uuid[];
  ids := holdfast.search_ids(p_query);
  not_ids := holdfast.search_names(p_query #> '{job,not}')::uuid[];
  if p_query ?| '{queue,task}' then
    kinds := array(select k.id from holdfast.kinds k
      where (p_query #> '{queue,in}' is null or p_query #> '{queue,in}' ? k.queue)
        and (p_query #> '{queue,not}' is null or not p_query #> '{queue,not}' ? k.queue)
        and (types is null or k.type = any (types)) and (not_types is null or k.type <> all (not_types)));
  end if;
  if p_query ? 'worker' then
    workers := array(select w.id from holdfast.workers w where p_query #> '{worker,in}' ? w.name);
  end if;
  args := nullif(p_query #> '{args,all}', '{}');
  result := nullif(p_query #> '{result,all}', '{}');
  -- States that have an index of their own, so that the rare are found among many.
  only_failed := coalesce(states <@ '{failed}', false);
  only_running := coalesce(states <@ '{running}', false);
  only_scheduled := coalesce(states <@ '{scheduled,retrying}', false);
  live := states is null or not states <@ '{succeeded,partial,failed,cancelled,ended}';
  ended := states is null or states && '{succeeded,partial,failed,cancelled,ended}';
  patterns := holdfast.search_patterns(p_query #> '{text,in}');
  not_patterns := holdfast.search_patterns(p_query #> '{text,not}');
  args_any := holdfast.search_shapes(p_query #> '{args,in,0}');
  not_args := holdfast.search_shapes(p_query #> '{args,not}');
  result_any := holdfast.search_shapes(p_query #> '{result,in,0}');
  not_result := holdfast.search_shapes(p_query #> '{result,not}');
  labels_any := holdfast.label_shapes(p_query #> '{labels,in,0}');
  label_names := holdfast.label_keys(p_query #> '{labels,in,0}');
  not_labels := holdfast.label_shapes(jsonb_path_query_array(p_query, '$.labels.not[*][*]'));
  not_label_names := holdfast.label_keys(jsonb_path_query_array(p_query, '$.labels.not[*][*]'));
  select b.at_least, b.at_most into attempt_least, attempt_most from holdfast.search_bounds(p_query -> 'attempt') as b;
  select b.at_least, b.at_most into wait_least, wait_most from holdfast.search_bounds(p_query -> 'wait') as b;
  select b.at_least, b.at_most into run_least, run_most from holdfast.search_bounds(p_query -> 'run') as b;
  -- What is left needs a function call a row: the second list and further ones of the same field.
  more := nullif(jsonb_strip_nulls(jsonb_build_object('args', nullif((p_query #> '{args,in}') - 0, '[]'),
    'result', nullif((p_query #> '{result,in}') - 0, '[]'), 'labels', nullif((p_query #> '{labels,in}') - 0, '[]'))), '{}');
  plain := p_query - '{since,until}'::text[] = '{}' or (only_failed and p_query - '{since,until,state}'::text[] = '{}');
end $$;

create or replace function holdfast.search_names(p_list jsonb) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_list) = 'array' then array(select jsonb_array_elements_text(p_list)) end;
end $$;

-- The smallest id of a moment: ids begin with their time.
create or replace function holdfast.search_bound(p_time jsonb, p_now timestamptz) returns uuid
language plpgsql stable set search_path = '' as $$
declare
  v_at timestamptz := coalesce(holdfast.time_in(p_time, 'at'),
    p_now - holdfast.number_in(p_time, 'ago_s', 0, 4e9) * interval '1 second');
begin
  if v_at is null then
    return null;
  end if;
  return (lpad(to_hex(floor(extract(epoch from least(greatest(v_at, 'epoch'::timestamptz), '9999-01-01Z'::timestamptz)) * 1000)::bigint),
    12, '0') || '00000000000000000000')::uuid;
end $$;

-- Jobs that the query names: by id, by key, or by the cause of a failed attempt. Null: it names none.
create or replace function holdfast.search_ids(p_query jsonb) returns uuid[]
language plpgsql stable set search_path = '' as $$
declare
  v_ids uuid[] := holdfast.search_names(p_query #> '{job,in}')::uuid[];
  v_more uuid[];
begin
  if p_query #> '{key,in}' is not null then
    v_more := array(select k.job_id from holdfast.keys k where k.key = any (holdfast.search_names(p_query #> '{key,in}')) limit 10000);
    v_ids := case when v_ids is null then v_more else array(select unnest(v_ids) intersect select unnest(v_more)) end;
  end if;
  if p_query #> '{cause,in}' is not null then
    v_more := array(select distinct a.job_id from (select a.job_id from holdfast.attempts a
      where a.fingerprint = any (holdfast.search_names(p_query #> '{cause,in}')) order by a.ended_at desc limit 100000) as a);
    v_ids := case when v_ids is null then v_more else array(select unnest(v_ids) intersect select unnest(v_more)) end;
  end if;
  return v_ids;
end $$;

-- The words under which a task is found by its state.
create or replace function holdfast.state_words(p_status text, p_failures integer) returns text[]
language sql immutable parallel safe as $$
  select case p_status
    when 'scheduled' then case when p_failures > 0 then array['scheduled', 'retrying', 'queued', 'alive'] else array['scheduled', 'queued', 'alive'] end
    when 'ready' then array['ready', 'queued', 'alive']
    when 'waiting' then array['waiting', 'queued', 'alive']
    when 'queued' then array['queued', 'alive']
    when 'running' then array['running', 'alive']
    else array[p_status, 'ended'] end
$$;

create or replace function holdfast.error_fits(p_error jsonb, p_words text[]) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return exists (select from unnest(p_words) as w where p_error ->> 'type' = w
    or position(lower(w) in lower(coalesce(p_error ->> 'type', '') || ': ' || coalesce(p_error ->> 'message', ''))) > 0);
end $$;

-- Comparisons as the least and the most that fit; null where nothing is asked.
create or replace function holdfast.search_bounds(p_tests jsonb, out at_least double precision, out at_most double precision)
language plpgsql immutable set search_path = '' as $$
begin
  select max(case when t.op in ('>=', '=') then t.value when t.op = '>' then t.value + 1e-6 end),
    min(case when t.op in ('<=', '=') then t.value when t.op = '<' then t.value - 1e-6 end)
  into at_least, at_most from jsonb_to_recordset(p_tests) as t (op text, value double precision);
end $$;

create or replace function holdfast.search_shapes(p_list jsonb) returns jsonb[]
language plpgsql immutable set search_path = '' as $$
begin
  return case when jsonb_typeof(p_list) = 'array' then array(select jsonb_array_elements(p_list)) end;
end $$;

-- Labels {name, values} as shapes that contain one of the values; and the names of those that ask for no value.
create or replace function holdfast.label_shapes(p_list jsonb) returns jsonb[]
language plpgsql immutable set search_path = '' as $$
begin
  return (select array_agg(jsonb_build_object(l ->> 'name', v)) from jsonb_array_elements(p_list) as l, jsonb_array_elements(l -> 'values') as v);
end $$;

create or replace function holdfast.label_keys(p_list jsonb) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return (select array_agg(l ->> 'name') from jsonb_array_elements(p_list) as l where not l ? 'values');
end $$;

-- Whether each of the lists has a shape, or a label, that fits.
create or replace function holdfast.more_fits(p_more jsonb, p_args jsonb[], p_outputs jsonb[], p_labels jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return not exists (select from jsonb_array_elements(p_more -> 'args') as one where not exists (
      select from unnest(p_args) as a where a @> any (holdfast.search_shapes(one.value))))
    and not exists (select from jsonb_array_elements(p_more -> 'result') as one where not exists (
      select from unnest(p_outputs) as a where a @> any (holdfast.search_shapes(one.value))))
    and not exists (select from jsonb_array_elements(p_more -> 'labels') as one
      where (p_labels @> any (holdfast.label_shapes(one.value)) or p_labels ?| holdfast.label_keys(one.value)) is not true);
end $$;

-- Words as regular expressions that mean just them: one for each list, of which one word must be there.
create or replace function holdfast.search_patterns(p_lists jsonb) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  if jsonb_typeof(p_lists) is distinct from 'array' then
    return null;
  end if;
  return array(select string_agg(regexp_replace(lower(w), '([][\\.(){}*+?^$|])', '\\\1', 'g'), '|')
    from jsonb_array_elements(p_lists) with ordinality as l (words, n), jsonb_array_elements_text(l.words) as w group by l.n);
end $$;

-- What a word is looked for in.
create or replace function holdfast.search_text(p_id uuid, p_type text, p_owner text, p_error jsonb) returns text
language sql stable parallel safe as $$
  select pg_catalog.lower(pg_catalog.concat_ws(' ', p_id::pg_catalog.text, p_type, p_owner, p_error operator(pg_catalog.->>) 'type',
    p_error operator(pg_catalog.->>) 'message'))
$$;
