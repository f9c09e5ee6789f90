-- Task types: what workers can run, with a JSON Schema of the arguments, and the validation of arguments.

-- Store the task types of a worker when it starts: [{name, queue, schema, hash, doc, options, version}]. Return how
-- many are new or changed. The option `limit` becomes the limit `task:<name>` when it differs from the value registered
-- before, so a limit that an operator changed since then stays.
create or replace function holdfast.register_task_types(p_worker text, p_types jsonb) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
begin
  if jsonb_typeof(p_types) is distinct from 'array' then
    perform holdfast.raise_error('HF004', 'types must be a JSON array.', 'types');
  end if;
  perform holdfast.apply_declared_limits(p_types);
  with types as (
    select holdfast.check_name(t ->> 'name', 'name') as name, coalesce(t ->> 'queue', 'default') as queue,
      nullif(t -> 'schema', 'null') as schema,
      coalesce(t ->> 'hash', md5(coalesce(t ->> 'schema', ''))) as hash, left(t ->> 'doc', 4000) as doc,
      coalesce(nullif(t -> 'options', 'null'), '{}') as options, left(t ->> 'version', 200) as version
    from jsonb_array_elements(p_types) as t order by t ->> 'name'
  ), written as (
    insert into holdfast.task_types as o (name, queue, schema, hash, doc, options, worker, version, first_seen_at,
      changed_at, seen_at)
    select g.name, g.queue, g.schema, g.hash, g.doc, g.options, left(p_worker, 200), g.version, v_now, v_now, v_now
      from types g
    on conflict (name) do update set queue = excluded.queue, schema = excluded.schema, hash = excluded.hash,
      doc = excluded.doc,
      options = excluded.options, worker = excluded.worker, version = excluded.version, seen_at = excluded.seen_at,
      changed_at = case when (o.queue, o.hash, o.doc, o.options) is distinct
        from (excluded.queue, excluded.hash, excluded.doc, excluded.options)
        then excluded.changed_at else o.changed_at end
    returning o.changed_at = v_now as changed
  )
  select count(*) filter (where w.changed) into v_count from written w;
  return v_count;
end $$;

-- Create, change or remove the limits that task types declare.
create or replace function holdfast.apply_declared_limits(p_types jsonb) returns void
language plpgsql set search_path = '' as $$
declare
  v_one record;
begin
  for v_one in
    select t ->> 'name' as name, holdfast.parse_number_field(t -> 'options', 'limit', 1, 1000000)::int as max_running
    from jsonb_array_elements(p_types) as t left join holdfast.task_types o on o.name = t ->> 'name'
    where (o.options ->> 'limit') is distinct from (t #>> '{options,limit}') order by t ->> 'name'
  loop
    if v_one.max_running is null then
      perform holdfast.delete_limit('task:' || v_one.name);
    else
      perform holdfast.put_limit('task:' || v_one.name, p_type => v_one.name, p_max_running => v_one.max_running);
    end if;
  end loop;
end $$;

-- List task types by name. p_after is the last name of the previous page.
create or replace function holdfast.list_task_types(
  p_after text default null, p_limit integer default 1000) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(t) from holdfast.task_types t where p_after is null or t.name > p_after
    order by t.name limit least(greatest(coalesce(p_limit, 1000), 1), 1000);
end $$;

-- Return the names of all task types that a worker has registered or somebody has submitted.
create or replace function holdfast.list_task_type_names() returns setof text
language sql stable security definer set search_path = '' as $$
  select t.name from holdfast.task_types t union select p.type from holdfast.task_policies p order by 1 limit 10000
$$;

-- Return one task type, or null.
create or replace function holdfast.get_task_type(p_name text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return (select to_jsonb(t) from holdfast.task_types t where t.name = p_name);
end $$;

-- Delete task types that no worker has registered for p_older_than_s seconds, for example because they were renamed.
create or replace function holdfast.delete_unseen_task_types(
  p_older_than_s double precision default 2592000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_count integer;
begin
  delete from holdfast.task_types t where t.seen_at < holdfast.now() - p_older_than_s * interval '1 second';
  get diagnostics v_count = row_count;
  return v_count;
end $$;

-- Refuse arguments that do not match the schema of the task type. A type without a schema accepts any arguments.
create or replace function holdfast.validate_task_args(p_type text, p_args jsonb) returns void
language plpgsql stable security definer set search_path = '' as $$
declare
  v_schema jsonb := (select t.schema from holdfast.task_types t where t.name = p_type);
  v_violation text[];
begin
  if v_schema is null then
    return;
  end if;
  v_violation := holdfast.validate_value_against_schema(coalesce(p_args, '{}'), v_schema, v_schema, 'args', 0);
  if v_violation is not null then
    perform holdfast.raise_error('HF004', format('%s of %s %s.', v_violation[1], p_type, v_violation[2]),
      v_violation[1]);
  end if;
end $$;

-- Validate the arguments of every task of a job that is being submitted.
create or replace function holdfast.validate_job_args(p_job jsonb) returns void
language plpgsql stable set search_path = '' as $$
begin
  if jsonb_typeof(p_job -> 'tasks') = 'array' then
    perform holdfast.validate_task_args(t ->> 'type', t -> 'args') from jsonb_array_elements(p_job -> 'tasks') as t;
  else
    perform holdfast.validate_task_args(p_job ->> 'type', p_job -> 'args');
  end if;
end $$;

call holdfast.grant_execute('holdfast_worker', 'register_task_types', 'list_task_types', 'list_task_type_names', 'get_task_type',
  'delete_unseen_task_types', 'validate_task_args');
call holdfast.grant_execute('service_role', 'register_task_types', 'list_task_types', 'list_task_type_names', 'get_task_type',
  'delete_unseen_task_types', 'validate_task_args');
