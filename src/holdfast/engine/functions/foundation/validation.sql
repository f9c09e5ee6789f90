-- Errors, and checks of arguments that come as JSON.

-- Raise an error with one of our SQLSTATEs. The column of the error names the argument, the hint says what to do.
create or replace function holdfast.raise_error(p_code text, p_message text, p_field text default null,
  p_fix text default null)
returns void
language plpgsql set search_path = '' as $$
begin
  raise exception using errcode = p_code, message = p_message,
    column = coalesce(p_field, ''), hint = coalesce(p_fix, '');
end $$;

-- Return a name of 1 to 200 bytes without control characters, or raise HF004.
create or replace function holdfast.check_name(p_value text, p_field text) returns text
language plpgsql immutable set search_path = '' as $$
begin
  if p_value is null or octet_length(p_value) not between 1 and 200 or p_value ~ '[\x01-\x1f\x7f]' then
    perform holdfast.raise_error('HF004',
      format('%s must be 1 to 200 bytes without control characters, got %s.', p_field,
        coalesce(quote_literal(left(p_value, 60)), 'nothing')), p_field);
  end if;
  return p_value;
end $$;

-- Return a text of at most p_max_bytes bytes without control characters, or null. Raise HF004 for any other text.
create or replace function holdfast.check_text(p_value text, p_field text, p_max_bytes integer) returns text
language plpgsql immutable set search_path = '' as $$
begin
  if octet_length(p_value) not between 1 and p_max_bytes or p_value ~ '[\x01-\x1f\x7f]' then
    perform holdfast.raise_error('HF004', format('%s must be 1 to %s bytes without control characters, got %s.',
      p_field, p_max_bytes, quote_literal(left(p_value, 60))), p_field);
  end if;
  return p_value;
end $$;

-- Return an owner, or null. Raise HF004 for an owner that the indexes of the job tables could not hold.
create or replace function holdfast.check_owner(p_owner text) returns text
language plpgsql immutable set search_path = '' as $$
begin
  return holdfast.check_text(p_owner, 'owner', 1000);
end $$;

-- Return a number from p_min to p_max, or null. Raise HF004 for any other number, including NaN.
create or replace function holdfast.check_number(p_value double precision, p_field text, p_min double precision,
  p_max double precision) returns double precision
language plpgsql immutable set search_path = '' as $$
begin
  if p_value not between p_min and p_max then
    perform holdfast.raise_error('HF004', format('%s must be a number from %s to %s, got %s.', p_field, p_min, p_max,
      p_value), p_field);
  end if;
  return p_value;
end $$;

-- Read a number from a field of a JSON object. Raise HF004 if it is outside the range; null if the field is missing.
create or replace function holdfast.parse_number_field(p_body jsonb, p_field text, p_min double precision,
  p_max double precision)
returns double precision
language plpgsql immutable set search_path = '' as $$
declare
  v_json_type text := jsonb_typeof(p_body -> p_field);
  v_value double precision;
begin
  if v_json_type is null or v_json_type = 'null' then
    return null;
  end if;
  if v_json_type = 'number' and length(p_body ->> p_field) < 300 then
    v_value := (p_body ->> p_field)::double precision;
  end if;
  if v_value is null or v_value < p_min or v_value > p_max then
    perform holdfast.raise_error('HF004', format('%s must be a number from %s to %s, got %s.', p_field, p_min, p_max,
      left(p_body ->> p_field, 60)), p_field);
  end if;
  return v_value;
end $$;

-- Read a time from a field of a JSON object. Raise HF004 if it is not valid; null if the field is missing.
create or replace function holdfast.parse_time_field(p_body jsonb, p_field text) returns timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_value timestamptz;
begin
  if p_body ->> p_field is null then
    return null;
  end if;
  -- A separate block: a block that can catch errors costs a subtransaction, and most jobs have no times.
  begin
    v_value := (p_body ->> p_field)::timestamptz;
    if not isfinite(v_value) then
      raise invalid_datetime_format;
    end if;
    return v_value;
  exception when data_exception then
    perform holdfast.raise_error('HF004', format('%s must be a time such as 2026-01-31T12:00:00Z, got %s.', p_field,
      quote_literal(left(p_body ->> p_field, 60))), p_field);
  end;
  return null;
end $$;

-- Shorten a text to about p_max_chars characters by cutting out its middle.
create or replace function holdfast.truncate_middle(p_text text, p_max_chars integer) returns text
language plpgsql immutable set search_path = '' as $$
begin
  return case when length(p_text) <= p_max_chars then p_text
    else left(p_text, p_max_chars / 2) || ' [...] ' || right(p_text, p_max_chars / 2) end;
end $$;
