-- Graphs: jobs of several tasks, inserted at once and validated before any task can run.

-- Return the dependencies that the tasks of a job declare, by name.
create or replace function holdfast.parse_dependencies(p_tasks jsonb)
returns table (child integer, child_name text, parent_name text, on_failure text)
language plpgsql immutable set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  select t.ord::int, coalesce(t.body ->> 'name', t.body ->> 'type'),
    case jsonb_typeof(a) when 'object' then a ->> 'name' else a #>> '{}' end,
    coalesce(case jsonb_typeof(a) when 'object' then a ->> 'on_failure' end, 'fail')
  from jsonb_array_elements(p_tasks) with ordinality as t (body, ord)
  cross join lateral jsonb_array_elements(
    case when jsonb_typeof(t.body -> 'after') = 'array' then t.body -> 'after' else '[]' end) as a;
end $$;

-- Raise HF004 for invalid names, duplicate names, unknown parents, unknown policies and cycles. `p_known` names the
-- tasks that the job already has.
create or replace function holdfast.validate_task_graph(p_tasks jsonb, p_known text[]) returns void
language plpgsql immutable set search_path = '' as $$
declare
  v_names text[] := array(select coalesce(t ->> 'name', t ->> 'type') from jsonb_array_elements(p_tasks) as t);
  v_problem text;
  v_unknown_parent text;
  v_unknown_policy text;
  v_is_sorted boolean;
begin
  perform holdfast.check_name(n, 'name') from unnest(v_names) as n
    where n is null or octet_length(n) not between 1 and 200 or n ~ '[\x01-\x1f\x7f]';
  select n into v_problem from unnest(v_names) as n group by n having count(*) > 1 limit 1;
  if found then
    perform holdfast.raise_error('HF004', format('Two tasks have the name %s.', quote_literal(v_problem)), 'name',
      'Give every task of a job its own name.');
  end if;
  select min(format('%s depends on %s, which is not a task of this job.', e.child_name,
      coalesce(quote_literal(e.parent_name), 'nothing')))
      filter (where p.ord is null and (e.parent_name is null or e.parent_name <> all (p_known))),
    min(e.on_failure) filter (where e.on_failure not in ('fail', 'skip', 'run')),
    bool_and(p.ord < e.child) filter (where p.ord is not null)
  into v_unknown_parent, v_unknown_policy, v_is_sorted
  from holdfast.parse_dependencies(p_tasks) e
  left join unnest(v_names) with ordinality as p (name, ord) on p.name = e.parent_name;
  if v_unknown_parent is not null then
    perform holdfast.raise_error('HF004', v_unknown_parent, 'after');
  end if;
  if v_unknown_policy is not null then
    perform holdfast.raise_error('HF004', format('on_failure must be fail, skip or run, got %s.',
      quote_literal(v_unknown_policy)), 'on_failure');
  end if;
  if not v_is_sorted then
    perform holdfast.validate_graph_is_acyclic(v_names, p_tasks);
  end if;
end $$;

-- Raise HF004 if tasks wait for each other: tasks without remaining parents are removed, round by round. Tasks that are
-- listed parents first need no such search.
create or replace function holdfast.validate_graph_is_acyclic(p_names text[], p_tasks jsonb) returns void
language plpgsql immutable set search_path = '' as $$
declare
  v_children int[];
  v_parents int[];
  v_left int[];
  v_next int[];
begin
  select array_agg(e.child), array_agg(array_position(p_names, e.parent_name))
  into v_children, v_parents from holdfast.parse_dependencies(p_tasks) e where e.parent_name = any (p_names);
  v_left := array(select generate_series(1, cardinality(p_names)));
  loop
    v_next := array(select distinct e.c from unnest(v_children, v_parents) as e (c, p)
      where e.p = any (v_left) and e.c = any (v_left));
    exit when cardinality(v_next) = 0;
    if cardinality(v_next) = cardinality(v_left) then
      perform holdfast.raise_error('HF004', format('The tasks %s depend on each other in a cycle.', (
        select string_agg(p_names[n], ', ') from unnest(v_left[1:10]) as n)), 'after');
    end if;
    v_left := v_next;
  end loop;
end $$;

-- Insert a job of several tasks. Return {name: id} of its tasks.
create or replace function holdfast.insert_graph_job(p_id uuid, p_job jsonb, p_owner text, p_now timestamptz)
  returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_tasks jsonb := p_job -> 'tasks';
begin
  perform holdfast.validate_task_graph(v_tasks, '{}');
  insert into holdfast.jobs (id, type, owner, allow_partial, total, progress_weight, params, labels,
    unique_key, batch_id)
  select p_id, holdfast.check_name(coalesce(p_job ->> 'type', v_tasks #>> '{0,type}'), 'type'), p_owner,
    coalesce((p_job ->> 'partial')::boolean, false), count(*),
    sum(case when t ? 'weight' then coalesce(holdfast.parse_number_field(t, 'weight', 0, 1e9), 1) else 1 end),
    nullif(p_job -> 'params', 'null'), nullif(p_job -> 'labels', 'null'), p_job ->> 'unique_key',
      (p_job ->> 'batch')::uuid
  from jsonb_array_elements(v_tasks) as t;
  return holdfast.insert_graph_tasks(p_id, v_tasks, p_job, p_owner, p_now, '{}');
end $$;

-- Insert tasks and dependencies of a job; p_existing has the ids of the tasks that the job already has, by name.
-- Tasks with parents wait; the others are ready or scheduled at once.
create or replace function holdfast.insert_graph_tasks(
  p_job_id uuid, p_tasks jsonb, p_job jsonb, p_owner text, p_now timestamptz, p_existing jsonb) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_id text := holdfast.new_id(holdfast.build_id_prefix(p_now), holdfast.get_shard_byte_hex())::text;
  v_id_start bigint := ('x' || right(v_id, 12))::bit(48)::bigint;
  v_task_lanes bigint[] := holdfast.find_lanes(p_tasks, p_job, p_owner);
  v_job_has_time boolean := p_job ?| '{run_at,delay_s}';
  v_job_expires_at timestamptz := holdfast.parse_time_field(p_job, 'expires_at');
  v_names jsonb;
  v_lanes bigint[];
  v_ready_count integer;
  v_dependency_count bigint;
  v_inserted_count bigint;
begin
  v_id := left(v_id, 24);
  with input as (
    select t.ord, t.body, case when cardinality(v_task_lanes) = 1 then v_task_lanes[1] else v_task_lanes[t.ord] end
        as lane_id,
      case when v_job_has_time or t.body ?| '{run_at,delay_s}' then holdfast.parse_due_time(t.body, p_job, p_now)
        else p_now end as due_at,
      nullif(case when jsonb_typeof(t.body -> 'after') = 'array'
        then jsonb_array_length(t.body -> 'after') end, 0) as pending_parents
    from jsonb_array_elements(p_tasks) with ordinality as t (body, ord)
    order by t.ord
  ), inserted as (
    insert into holdfast.tasks as t (id, job_id, lane_id, pos, due_at, status, args, name, owner, pending_parents,
      weight,
      start_before)
    -- The ids rise by one, so that they are in the given order and neighbours in the index.
    select (v_id || lpad(to_hex((v_id_start + g.ord) & 281474976710655), 12, '0'))::uuid, p_job_id,
      g.lane_id,
      case when g.pending_parents is null and g.due_at <= p_now then nextval('holdfast.task_positions') end,
      greatest(g.due_at, p_now),
      case when g.pending_parents is not null then 'waiting' when g.due_at <= p_now then 'ready' else 'scheduled' end,
      case when pg_column_size(g.body) > 262144 then holdfast.parse_task_args(g.body) else g.body -> 'args' end,
      coalesce(g.body ->> 'name', g.body ->> 'type'), p_owner, g.pending_parents,
      case when g.body ? 'weight' then holdfast.parse_number_field(g.body, 'weight', 0, 1e9) end,
      case when g.body ? 'expires_at' then coalesce(holdfast.parse_time_field(g.body, 'expires_at'), v_job_expires_at)
        else v_job_expires_at end
    from input g
    returning t.id, t.name, t.lane_id, t.status, t.pending_parents
  )
  select jsonb_object_agg(m.name, m.id), array_agg(distinct m.lane_id) filter (where m.status = 'ready'),
    count(*) filter (where m.status = 'ready'), coalesce(sum(m.pending_parents), 0)
  into v_names, v_lanes, v_ready_count, v_dependency_count from inserted m;
  insert into holdfast.dependencies (parent_id, child_id, job_id, on_failure)
  select coalesce(v_names ->> e.parent_name, p_existing ->> e.parent_name)::uuid, (v_names ->> e.child_name)::uuid,
    p_job_id, e.on_failure
  from holdfast.parse_dependencies(p_tasks) e
  on conflict do nothing;
  get diagnostics v_inserted_count = row_count;
  if v_inserted_count < v_dependency_count then
    -- A parent that is named twice is one dependency: count the rows, not the names.
    update holdfast.tasks t set pending_parents = e.n
    from (select child_id, count(*)::int as n from holdfast.dependencies where job_id = p_job_id group by child_id) as e
    where t.id = e.child_id and t.pending_parents <> e.n and v_names ? t.name;
  end if;
  perform holdfast.wake_workers(v_lanes, v_ready_count);
  return v_names;
end $$;
