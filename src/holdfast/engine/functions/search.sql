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
  out live boolean, out ended boolean, out more jsonb, out plain boolean, out now timestamptz)
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
  -- What needs a function call a row, kept apart so that the usual searches do without.
  more := nullif(jsonb_strip_nulls(jsonb_build_object('labels', p_query -> 'labels', 'text', p_query -> 'text',
    'attempt', p_query -> 'attempt', 'wait', p_query -> 'wait', 'run', p_query -> 'run',
    'args', nullif((p_query -> 'args') - 'all', '{}'), 'result', nullif((p_query -> 'result') - 'all', '{}'))), '{}');
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

create or replace function holdfast.number_fits(p_tests jsonb, p_value double precision) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return not exists (
    select from jsonb_to_recordset(p_tests) as t (op text, value double precision)
    where (case t.op when '>' then p_value > t.value when '>=' then p_value >= t.value when '<' then p_value < t.value
      when '<=' then p_value <= t.value else p_value = t.value end) is not true);
end $$;

-- {"in": [[shape, ...], ...], "not": [shape, ...]}: of each list one must fit, of the second none.
create or replace function holdfast.shape_fits(p_value jsonb, p_test jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return not exists (select from jsonb_array_elements(p_test -> 'in') as one
      where not exists (select from jsonb_array_elements(one.value) as s where p_value @> s.value))
    and not exists (select from jsonb_array_elements(p_test -> 'not') as s where p_value @> s.value);
end $$;

create or replace function holdfast.label_fits(p_labels jsonb, p_wanted jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return exists (select from jsonb_array_elements(p_wanted) as w
    where p_labels ? (w.value ->> 'name') and (not w.value ? 'values' or w.value -> 'values' @> (p_labels -> (w.value ->> 'name'))));
end $$;

create or replace function holdfast.word_fits(p_word text, p_id uuid, p_type text, p_owner text, p_error jsonb) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return position(lower(p_word) in lower(p_type)) > 0 or p_owner = p_word or p_id::text like replace(p_word, '%', '') || '%'
    or holdfast.error_fits(p_error, array[p_word]);
end $$;

-- The tests of a query that need more than a comparison.
create or replace function holdfast.more_fits(
  p_more jsonb, p_row holdfast.all_tasks, p_now timestamptz) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return (not p_more ? 'labels' or (
      not exists (select from jsonb_array_elements(p_more #> '{labels,in}') as l where not holdfast.label_fits(coalesce(p_row.labels, '{}'), l.value))
      and not exists (select from jsonb_array_elements(p_more #> '{labels,not}') as l where holdfast.label_fits(coalesce(p_row.labels, '{}'), l.value))))
    and (not p_more ? 'text' or (
      not exists (select from jsonb_array_elements(p_more #> '{text,in}') as l where not exists (
        select from jsonb_array_elements_text(l.value) as w where holdfast.word_fits(w, p_row.id, p_row.type, p_row.owner, p_row.error)))
      and not exists (select from jsonb_array_elements(p_more #> '{text,not}') as l, jsonb_array_elements_text(l.value) as w
        where holdfast.word_fits(w, p_row.id, p_row.type, p_row.owner, p_row.error))))
    and (not p_more ? 'attempt' or holdfast.number_fits(p_more -> 'attempt', p_row.attempt))
    and (not p_more ? 'wait' or holdfast.number_fits(p_more -> 'wait',
      extract(epoch from coalesce(p_row.started_at, p_now) - p_row.due_at)::double precision))
    and (not p_more ? 'run' or holdfast.number_fits(p_more -> 'run',
      extract(epoch from coalesce(p_row.finished_at, p_now) - p_row.started_at)::double precision))
    and (not p_more ? 'args' or holdfast.shape_fits(coalesce(p_row.args, '{}'), p_more -> 'args'))
    and (not p_more ? 'result' or holdfast.shape_fits(coalesce(p_row.output, 'null'), p_more -> 'result'));
end $$;

-- A job of several tasks in the shape of a task, for the tests above.
create or replace function holdfast.job_as_task(p_job holdfast.jobs) returns holdfast.all_tasks
language plpgsql stable set search_path = '' as $$
declare
  v_row holdfast.all_tasks;
begin
  v_row.id := p_job.id;
  v_row.type := p_job.type;
  v_row.owner := p_job.owner;
  v_row.labels := p_job.labels;
  v_row.args := p_job.params;
  v_row.output := p_job.output;
  v_row.error := p_job.error;
  v_row.due_at := holdfast.id_time(p_job.id);
  v_row.started_at := p_job.started_at;
  v_row.finished_at := p_job.finished_at;
  v_row.attempt := (select max(t.attempt) from holdfast.tasks t where t.job_id = p_job.id);
  return v_row;
end $$;
