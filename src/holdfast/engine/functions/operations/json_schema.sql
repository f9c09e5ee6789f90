-- Validation of values against a JSON Schema (2020-12). Each function returns {path, reason} for the first value that
-- does not match, or null.
--
-- Supported keywords: type, enum, const, required, properties, additionalProperties, minimum, maximum,
-- exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, items, prefixItems, minItems, maxItems, allOf,
-- anyOf, oneOf (as anyOf), and $ref into the schema itself. The worker checks other keywords (format, pattern, ...). A
-- value that is the result of another task, {"holdfast:result": "name"}, is not known yet and matches every schema.

-- Validate a value against a schema. p_root resolves references, p_depth bounds the recursion.
create or replace function holdfast.validate_value_against_schema(
  p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_type text := jsonb_typeof(p_value);
  v_one jsonb;
  v_violation text[];
begin
  if p_schema is null or p_schema = 'true' or jsonb_typeof(p_schema) is distinct from 'object' and p_schema <> 'false'
    or (v_type = 'object' and p_value ? 'holdfast:result' and p_value - 'holdfast:result' = '{}') then
    return null;
  end if;
  if p_schema = 'false' then
    return array[p_path, 'is not allowed'];
  end if;
  if p_depth > 100 then
    return array[p_path, 'is nested too deeply'];
  end if;
  if p_schema ? '$ref' then
    v_one := case p_schema ->> '$ref' when '#' then p_root
      else p_root #> string_to_array(replace(replace(ltrim(p_schema ->> '$ref', '#/'), '~1', '/'), '~0', '~'), '/') end;
    v_violation := holdfast.validate_value_against_schema(p_value, v_one, p_root, p_path, p_depth + 1);
    if v_violation is not null then
      return v_violation;
    end if;
  end if;
  v_violation := coalesce(
    holdfast.validate_type_against_schema(p_value, v_type, p_schema, p_path),
    case v_type when 'number' then
        holdfast.validate_number_against_schema((p_value #>> '{}')::numeric, p_schema, p_path)
      when 'string' then holdfast.validate_length_against_schema(
        length(p_value #>> '{}'), p_schema, 'Length', 'characters', p_path)
      when 'array' then coalesce(holdfast.validate_length_against_schema(
        jsonb_array_length(p_value), p_schema, 'Items', 'items', p_path),
        holdfast.validate_items_against_schema(p_value, p_schema, p_root, p_path, p_depth))
      when 'object' then holdfast.validate_properties_against_schema(p_value, p_schema, p_root, p_path, p_depth) end);
  if v_violation is not null or not p_schema ?| '{allOf,anyOf,oneOf}' then
    return v_violation;
  end if;
  return holdfast.validate_value_against_alternatives(p_value, p_schema, p_root, p_path, p_depth);
end $$;

-- Validate a value against type, const and enum.
create or replace function holdfast.validate_type_against_schema(
  p_value jsonb, p_type text, p_schema jsonb, p_path text) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_types jsonb := case jsonb_typeof(p_schema -> 'type') when 'string' then jsonb_build_array(p_schema -> 'type')
    when 'array' then p_schema -> 'type' end;
begin
  if v_types is not null and not v_types ? p_type and not (p_type = 'number' and v_types ? 'integer'
    and trunc((p_value #>> '{}')::numeric) = (p_value #>> '{}')::numeric) then
    return array[p_path, format('must be %s, got %s',
      (select string_agg(t, ' or ') from jsonb_array_elements_text(v_types) as t), p_type)];
  end if;
  if p_schema ? 'const' and p_value <> p_schema -> 'const' then
    return array[p_path, format('must be %s', p_schema -> 'const')];
  end if;
  if jsonb_typeof(p_schema -> 'enum') = 'array' and not exists (
    select from jsonb_array_elements(p_schema -> 'enum') as e where e = p_value) then
    return array[p_path, format('must be one of %s, got %s', holdfast.truncate_middle((p_schema -> 'enum')::text, 300),
      left(p_value::text, 60))];
  end if;
  return null;
end $$;

-- Validate a number against minimum, maximum, exclusiveMinimum, exclusiveMaximum and multipleOf.
create or replace function holdfast.validate_number_against_schema(
  p_number numeric, p_schema jsonb, p_path text) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return case
    when p_number < (p_schema ->> 'minimum')::numeric
      then array[p_path, format('must be at least %s, got %s', p_schema ->> 'minimum', p_number)]
    when p_number > (p_schema ->> 'maximum')::numeric
      then array[p_path, format('must be at most %s, got %s', p_schema ->> 'maximum', p_number)]
    when p_number <= (p_schema ->> 'exclusiveMinimum')::numeric
      then array[p_path, format('must be above %s, got %s', p_schema ->> 'exclusiveMinimum', p_number)]
    when p_number >= (p_schema ->> 'exclusiveMaximum')::numeric
      then array[p_path, format('must be below %s, got %s', p_schema ->> 'exclusiveMaximum', p_number)]
    when p_number % nullif((p_schema ->> 'multipleOf')::numeric, 0) <> 0
      then array[p_path, format('must be a multiple of %s, got %s', p_schema ->> 'multipleOf', p_number)] end;
end $$;

-- Validate a length against the minimum and maximum of a schema. p_keyword is Length or Items, as in minLength and
-- maxItems.
create or replace function holdfast.validate_length_against_schema(
  p_length integer, p_schema jsonb, p_keyword text, p_unit text, p_path text) returns text[]
language plpgsql immutable set search_path = '' as $$
begin
  return case
    when p_length < (p_schema ->> ('min' || p_keyword))::numeric
      then array[p_path, format('must have at least %s %s, got %s', p_schema ->> ('min' || p_keyword), p_unit,
        p_length)]
    when p_length > (p_schema ->> ('max' || p_keyword))::numeric
      then array[p_path, format('must have at most %s %s, got %s', p_schema ->> ('max' || p_keyword), p_unit,
        p_length)] end;
end $$;

-- Validate the elements of an array against prefixItems and items.
create or replace function holdfast.validate_items_against_schema(
  p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_first integer := case when jsonb_typeof(p_schema -> 'prefixItems') = 'array'
    then jsonb_array_length(p_schema -> 'prefixItems') else 0 end;
  v_item record;
  v_violation text[];
begin
  if not p_schema ?| '{items,prefixItems}' then
    return null;
  end if;
  for v_item in select i.body, i.ord::int - 1 as n
    from jsonb_array_elements(p_value) with ordinality as i (body, ord) loop
    v_violation := holdfast.validate_value_against_schema(v_item.body,
      case when v_item.n < v_first then p_schema -> 'prefixItems' -> v_item.n else p_schema -> 'items' end,
      p_root, format('%s[%s]', p_path, v_item.n), p_depth + 1);
    exit when v_violation is not null;
  end loop;
  return v_violation;
end $$;

-- Validate an object against required, properties and additionalProperties.
create or replace function holdfast.validate_properties_against_schema(
  p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_member record;
  v_name text;
  v_violation text[];
begin
  if jsonb_typeof(p_schema -> 'required') = 'array' then
    select n into v_name from jsonb_array_elements_text(p_schema -> 'required') as n where not p_value ? n limit 1;
    if found then
      return array[p_path || '.' || v_name, 'is missing'];
    end if;
  end if;
  for v_member in select m.key, m.value from jsonb_each(p_value) as m loop
    if p_schema -> 'properties' ? v_member.key then
      v_violation := holdfast.validate_value_against_schema(
        v_member.value, p_schema -> 'properties' -> v_member.key, p_root, p_path || '.' || v_member.key, p_depth + 1);
    elsif p_schema -> 'additionalProperties' = 'false' then
      v_violation := array[p_path || '.' || v_member.key, 'is not a known property'];
    elsif p_schema ? 'additionalProperties' then
      v_violation := holdfast.validate_value_against_schema(
        v_member.value, p_schema -> 'additionalProperties', p_root, p_path || '.' || v_member.key, p_depth + 1);
    end if;
    exit when v_violation is not null;
  end loop;
  return v_violation;
end $$;

-- Validate a value against allOf, anyOf and oneOf.
create or replace function holdfast.validate_value_against_alternatives(
  p_value jsonb, p_schema jsonb, p_root jsonb, p_path text, p_depth integer) returns text[]
language plpgsql immutable set search_path = '' as $$
declare
  v_keyword text;
  v_violation text[];
  v_reasons text[];
begin
  select w.violation into v_violation from jsonb_array_elements(coalesce(p_schema -> 'allOf', '[]')) as s
  cross join lateral (
    select holdfast.validate_value_against_schema(p_value, s, p_root, p_path, p_depth + 1) as violation) as w
    where w.violation is not null limit 1;
  if found then
    return v_violation;
  end if;
  foreach v_keyword in array '{anyOf,oneOf}'::text[] loop
    continue when not p_schema ? v_keyword;
    v_reasons := array(
      select array_to_string(holdfast.validate_value_against_schema(p_value, s, p_root, p_path, p_depth + 1), ' ')
      from jsonb_array_elements(p_schema -> v_keyword) as s);
    if not '' = any (v_reasons) and cardinality(array_remove(v_reasons, null)) = cardinality(v_reasons) then
      return array[p_path, 'matches none of its alternatives: '
        || holdfast.truncate_middle(array_to_string(v_reasons, '; '), 600)];
    end if;
  end loop;
  return null;
end $$;

