-- The catalogue: what workers can run, with a JSON Schema of the arguments, and the check of arguments against it.
--
-- The part of JSON Schema (2020-12) that is checked: type, enum, const, required, properties, additionalProperties,
-- minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, items, prefixItems, minItems, maxItems,
-- allOf, anyOf, oneOf (as anyOf), and $ref into the schema itself. Other keywords (format, pattern, ...) are left to the worker.
-- A value that is the result of another task, {"holdfast:result": "name"}, is not known yet and fits everywhere.

-- What a worker says at its start: [{name, queue, schema, hash, doc, options, version}]; how many were new or different. The
-- option `limit` becomes the limit `task:<name>` when it differs from what was said last, so that one that was changed by hand
-- since then stays.
create or replace function holdfast.register_types(p_worker text, p_types jsonb) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
begin
  if jsonb_typeof(p_types) is distinct from 'array' then
    perform holdfast.refuse('HF004', 'types must be a list.', 'types');
  end if;
  perform holdfast.declare_limits(p_types);
  with given as (
    select holdfast.check_name(t ->> 'name', 'name') as name, coalesce(t ->> 'queue', 'default') as queue, nullif(t -> 'schema', 'null') as schema,
      coalesce(t ->> 'hash', md5(coalesce(t ->> 'schema', ''))) as hash, left(t ->> 'doc', 4000) as doc,
      coalesce(nullif(t -> 'options', 'null'), '{}') as options, left(t ->> 'version', 200) as version
    from jsonb_array_elements(p_types) as t order by t ->> 'name'
  ), written as (
    insert into holdfast.task_types as o (name, queue, schema, hash, doc, options, worker, version, first_seen_at, changed_at, seen_at)
    select g.name, g.queue, g.schema, g.hash, g.doc, g.options, left(p_worker, 200), g.version, v_now, v_now, v_now from given g
    on conflict (name) do update set queue = excluded.queue, schema = excluded.schema, hash = excluded.hash, doc = excluded.doc,
      options = excluded.options, worker = excluded.worker, version = excluded.version, seen_at = excluded.seen_at,
      changed_at = case when (o.queue, o.hash, o.doc, o.options) is distinct from (excluded.queue, excluded.hash, excluded.doc, excluded.options)
        then excluded.changed_at else o.changed_at end
    returning o.changed_at = v_now as changed
  )
  select count(*) filter (where w.changed) into v_count from written w;
  return v_count;
end $$;

create or replace function holdfast.declare_limits(p_types jsonb) returns void
language plpgsql set search_path = '' as $$
declare
  v_one record;
begin
  for v_one in
    select t ->> 'name' as name, holdfast.number_in(t -> 'options', 'limit', 1, 1000000)::int as most
    from jsonb_array_elements(p_types) as t left join holdfast.task_types o on o.name = t ->> 'name'
    where (o.options ->> 'limit') is distinct from (t #>> '{options,limit}') order by t ->> 'name'
  loop
    if v_one.most is null then
      perform holdfast.remove_limit('task:' || v_one.name);
    else
      perform holdfast.put_limit('task:' || v_one.name, p_type => v_one.name, p_max_running => v_one.most);
    end if;
  end loop;
end $$;

create or replace function holdfast.list_types(p_after text default null, p_limit integer default 1000) returns setof jsonb
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select to_jsonb(t) from holdfast.task_types t where p_after is null or t.name > p_after
    order by t.name limit least(greatest(coalesce(p_limit, 1000), 1), 1000);
end $$;

-- Types that nobody has said to know for so long, as after they were renamed.
create or replace function holdfast.forget_types(p_older_than_s double precision default 2592000) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_count integer;
begin
  delete from holdfast.task_types t where t.seen_at < holdfast.now() - p_older_than_s * interval '1 second';
  get diagnostics v_count = row_count;
  return v_count;
end $$;

-- Refuses arguments that do not fit what the type says; one that nobody has described yet takes any.
create or replace function holdfast.check_args(p_type text, p_args jsonb) returns void
language plpgsql stable security definer set search_path = '' as $$
declare
  v_schema jsonb := (select t.schema from holdfast.task_types t where t.name = p_type);
  v_wrong text[];
begin
  if v_schema is null then
    return;
  end if;
  v_wrong := holdfast.misfit(coalesce(p_args, '{}'), v_schema, v_schema, 'args', 0);
  if v_wrong is not null then
    perform holdfast.refuse('HF004', format('%s of %s %s.', v_wrong[1], p_type, v_wrong[2]), v_wrong[1]);
  end if;
end $$;

-- Every task of a job as it is submitted.
create or replace function holdfast.check_job_args(p_job jsonb) returns void
language plpgsql stable set search_path = '' as $$
begin
  if jsonb_typeof(p_job -> 'tasks') = 'array' then
    perform holdfast.check_args(t ->> 'type', t -> 'args') from jsonb_array_elements(p_job -> 'tasks') as t;
  else
    perform holdfast.check_args(p_job ->> 'type', p_job -> 'args');
  end if;
end $$;

-- Where a value does not fit a schema, and why: {path, reason}; null when it fits.
create or replace function holdfast.misfit(p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_kind text := jsonb_typeof(p_value);
  v_one jsonb;
  v_wrong text[];
begin
  if p_schema is null or p_schema = 'true' or jsonb_typeof(p_schema) is distinct from 'object' and p_schema <> 'false'
    or (v_kind = 'object' and p_value ? 'holdfast:result' and p_value - 'holdfast:result' = '{}') then
    return null;
  end if;
  if p_schema = 'false' then
    return array[p_path, 'is not wanted'];
  end if;
  if p_depth > 100 then
    return array[p_path, 'is nested too deeply'];
  end if;
  if p_schema ? '$ref' then
    v_one := case p_schema ->> '$ref' when '#' then p_root
      else p_root #> string_to_array(replace(replace(ltrim(p_schema ->> '$ref', '#/'), '~1', '/'), '~0', '~'), '/') end;
    v_wrong := holdfast.misfit(p_value, v_one, p_root, p_path, p_depth + 1);
    if v_wrong is not null then
      return v_wrong;
    end if;
  end if;
  v_wrong := coalesce(
    holdfast.misfit_type(p_value, v_kind, p_schema, p_path),
    case v_kind when 'number' then holdfast.misfit_number((p_value #>> '{}')::numeric, p_schema, p_path)
      when 'string' then holdfast.misfit_length(length(p_value #>> '{}'), p_schema, 'Length', 'characters', p_path)
      when 'array' then coalesce(holdfast.misfit_length(jsonb_array_length(p_value), p_schema, 'Items', 'items', p_path),
        holdfast.misfit_items(p_value, p_schema, p_root, p_path, p_depth))
      when 'object' then holdfast.misfit_members(p_value, p_schema, p_root, p_path, p_depth) end);
  if v_wrong is not null or not p_schema ?| '{allOf,anyOf,oneOf}' then
    return v_wrong;
  end if;
  return holdfast.misfit_choice(p_value, p_schema, p_root, p_path, p_depth);
end $$;

create or replace function holdfast.misfit_type(p_value jsonb, p_kind text, p_schema jsonb, p_path text) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_types jsonb := case jsonb_typeof(p_schema -> 'type') when 'string' then jsonb_build_array(p_schema -> 'type')
    when 'array' then p_schema -> 'type' end;
begin
  if v_types is not null and not v_types ? p_kind and not (p_kind = 'number' and v_types ? 'integer'
    and trunc((p_value #>> '{}')::numeric) = (p_value #>> '{}')::numeric) then
    return array[p_path, format('must be %s, got %s', (select string_agg(t, ' or ') from jsonb_array_elements_text(v_types) as t), p_kind)];
  end if;
  if p_schema ? 'const' and p_value <> p_schema -> 'const' then
    return array[p_path, format('must be %s', p_schema -> 'const')];
  end if;
  if jsonb_typeof(p_schema -> 'enum') = 'array' and not exists (select from jsonb_array_elements(p_schema -> 'enum') as e where e = p_value) then
    return array[p_path, format('must be one of %s, got %s', holdfast.bounded((p_schema -> 'enum')::text, 300), left(p_value::text, 60))];
  end if;
  return null;
end $$;

create or replace function holdfast.misfit_number(p_number numeric, p_schema jsonb, p_path text) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return case
    when p_number < (p_schema ->> 'minimum')::numeric then array[p_path, format('must be at least %s, got %s', p_schema ->> 'minimum', p_number)]
    when p_number > (p_schema ->> 'maximum')::numeric then array[p_path, format('must be at most %s, got %s', p_schema ->> 'maximum', p_number)]
    when p_number <= (p_schema ->> 'exclusiveMinimum')::numeric
      then array[p_path, format('must be above %s, got %s', p_schema ->> 'exclusiveMinimum', p_number)]
    when p_number >= (p_schema ->> 'exclusiveMaximum')::numeric
      then array[p_path, format('must be below %s, got %s', p_schema ->> 'exclusiveMaximum', p_number)]
    when p_number % nullif((p_schema ->> 'multipleOf')::numeric, 0) <> 0
      then array[p_path, format('must be a multiple of %s, got %s', p_schema ->> 'multipleOf', p_number)] end;
end $$;

-- p_what is Length or Items, as in minLength and maxItems.
create or replace function holdfast.misfit_length(p_length integer, p_schema jsonb, p_what text, p_unit text, p_path text) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return case
    when p_length < (p_schema ->> ('min' || p_what))::numeric
      then array[p_path, format('must have at least %s %s, got %s', p_schema ->> ('min' || p_what), p_unit, p_length)]
    when p_length > (p_schema ->> ('max' || p_what))::numeric
      then array[p_path, format('must have at most %s %s, got %s', p_schema ->> ('max' || p_what), p_unit, p_length)] end;
end $$;

create or replace function holdfast.misfit_items(p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_first integer := case when jsonb_typeof(p_schema -> 'prefixItems') = 'array' then jsonb_array_length(p_schema -> 'prefixItems') else 0 end;
  v_item record;
  v_wrong text[];
begin
  if not p_schema ?| '{items,prefixItems}' then
    return null;
  end if;
  for v_item in select i.body, i.ord::int - 1 as n from jsonb_array_elements(p_value) with ordinality as i (body, ord) loop
    v_wrong := holdfast.misfit(v_item.body, case when v_item.n < v_first then p_schema -> 'prefixItems' -> v_item.n else p_schema -> 'items' end,
      p_root, format('%s[%s]', p_path, v_item.n), p_depth + 1);
    exit when v_wrong is not null;
  end loop;
  return v_wrong;
end $$;

create or replace function holdfast.misfit_members(p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_member record;
  v_name text;
  v_wrong text[];
begin
  if jsonb_typeof(p_schema -> 'required') = 'array' then
    select n into v_name from jsonb_array_elements_text(p_schema -> 'required') as n where not p_value ? n limit 1;
    if found then
      return array[p_path || '.' || v_name, 'is missing'];
    end if;
  end if;
  for v_member in select m.key, m.value from jsonb_each(p_value) as m loop
    if p_schema -> 'properties' ? v_member.key then
      v_wrong := holdfast.misfit(v_member.value, p_schema -> 'properties' -> v_member.key, p_root, p_path || '.' || v_member.key, p_depth + 1);
    elsif p_schema -> 'additionalProperties' = 'false' then
      v_wrong := array[p_path || '.' || v_member.key, 'is not known'];
    elsif p_schema ? 'additionalProperties' then
      v_wrong := holdfast.misfit(v_member.value, p_schema -> 'additionalProperties', p_root, p_path || '.' || v_member.key, p_depth + 1);
    end if;
    exit when v_wrong is not null;
  end loop;
  return v_wrong;
end $$;

create or replace function holdfast.misfit_choice(p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_word text;
  v_wrong text[];
  v_reasons text[];
begin
  select w.wrong into v_wrong from jsonb_array_elements(coalesce(p_schema -> 'allOf', '[]')) as s
  cross join lateral (select holdfast.misfit(p_value, s, p_root, p_path, p_depth + 1) as wrong) as w where w.wrong is not null limit 1;
  if found then
    return v_wrong;
  end if;
  foreach v_word in array '{anyOf,oneOf}'::text[] loop
    continue when not p_schema ? v_word;
    v_reasons := array(select array_to_string(holdfast.misfit(p_value, s, p_root, p_path, p_depth + 1), ' ')
      from jsonb_array_elements(p_schema -> v_word) as s);
    if not '' = any (v_reasons) and cardinality(array_remove(v_reasons, null)) = cardinality(v_reasons) then
      return array[p_path, 'fits none of its kinds: ' || holdfast.bounded(array_to_string(v_reasons, '; '), 600)];
    end if;
  end loop;
  return null;
end $$;

call holdfast.allow('holdfast_worker', 'register_types', 'list_types', 'forget_types', 'check_args');
call holdfast.allow('service_role', 'register_types', 'list_types', 'forget_types', 'check_args');
call holdfast.allow('authenticated', 'check_args');
