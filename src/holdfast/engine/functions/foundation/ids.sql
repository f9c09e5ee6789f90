-- Ids, names, the caller, and the errors every other file raises.
--
-- An id is a UUIDv7: 48 bits of milliseconds, 12 bits of fractions of one, then random bits, of which one
-- byte is the number of the shard that made it (option `shard`, 0 by default), so that an id routes itself.

create or replace function holdfast.id_stem(p_now timestamptz) returns text
language plpgsql immutable strict parallel safe set search_path = '' as $$
declare
  v_us bigint := extract(epoch from p_now) * 1000000;
  v_ms text := lpad(to_hex(v_us / 1000), 12, '0');
begin
  return left(v_ms, 8) || '-' || right(v_ms, 4) || '-7' || lpad(to_hex((v_us % 1000) * 4096 / 1000), 3, '0') || '-';
end $$;

create or replace function holdfast.shard_hex() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_shard integer := (select (value #>> '{}')::int & 255 from holdfast.options where name = 'shard');
begin
  return lpad(to_hex(coalesce(v_shard, 0)), 2, '0');
end $$;

-- One expression and not pinned, so that it is inlined into bulk inserts; every name in it is qualified.
create or replace function holdfast.new_id(p_stem text, p_shard text) returns uuid
language sql volatile as $$
  select pg_catalog.overlay(pg_catalog.overlay(pg_catalog.gen_random_uuid()::pg_catalog.text, p_stem, 1, 19), p_shard, 22, 2)::pg_catalog.uuid
$$;

create or replace function holdfast.new_id() returns uuid
language plpgsql volatile set search_path = '' as $$
begin
  return (
  select holdfast.new_id(holdfast.id_stem(holdfast.now()), holdfast.shard_hex()));
end $$;

create or replace function holdfast.id_time(p_id uuid) returns timestamptz
language plpgsql immutable strict parallel safe set search_path = '' as $$
begin
  return (
  select 'epoch'::timestamptz + (h.ms + h.fraction / 4096.0) * interval '1 millisecond'
  from (select ('x0000' || substr(t, 1, 8) || substr(t, 10, 4))::bit(64)::bigint as ms,
               ('x' || lpad(substr(t, 16, 3), 8, '0'))::bit(32)::int as fraction
        from (select p_id::text as t) as id) as h);
end $$;

-- 63 random bits that no other timeline of this database repeats.
create or replace function holdfast.new_nonce() returns bigint
language plpgsql volatile set search_path = '' as $$
begin
  return ('x' || replace(right(gen_random_uuid()::text, 17), '-', ''))::bit(64)::bigint & 9223372036854775807;
end $$;

create or replace function holdfast.refuse(p_code text, p_message text, p_field text default null, p_fix text default null)
returns void
language plpgsql set search_path = '' as $$
begin
  raise exception using errcode = p_code, message = p_message,
    column = coalesce(p_field, ''), hint = coalesce(p_fix, '');
end $$;

create or replace function holdfast.check_name(p_value text, p_field text) returns text
language plpgsql immutable set search_path = '' as $$
begin
  if p_value is null or octet_length(p_value) not between 1 and 200 or p_value ~ '[\x01-\x1f\x7f]' then
    perform holdfast.refuse('HF004',
      format('%s must be 1 to 200 bytes without control characters, got %s.', p_field,
        coalesce(quote_literal(left(p_value, 60)), 'nothing')), p_field);
  end if;
  return p_value;
end $$;

-- A number out of a JSON object, or null when it is not there.
create or replace function holdfast.number_in(p_body jsonb, p_field text, p_least double precision, p_most double precision)
returns double precision
language plpgsql immutable set search_path = '' as $$
declare
  v_kind text := jsonb_typeof(p_body -> p_field);
  v_value double precision;
begin
  if v_kind is null or v_kind = 'null' then
    return null;
  end if;
  if v_kind = 'number' and length(p_body ->> p_field) < 300 then
    v_value := (p_body ->> p_field)::double precision;
  end if;
  if v_value is null or v_value < p_least or v_value > p_most then
    perform holdfast.refuse('HF004', format('%s must be a number from %s to %s, got %s.', p_field, p_least, p_most,
      left(p_body ->> p_field, 60)), p_field);
  end if;
  return v_value;
end $$;

create or replace function holdfast.time_in(p_body jsonb, p_field text) returns timestamptz
language plpgsql stable set search_path = '' as $$
declare
  v_value timestamptz;
begin
  if p_body ->> p_field is null then
    return null;
  end if;
  -- A block of its own: one that can catch errors costs a subtransaction, and most jobs have no times.
  begin
    v_value := (p_body ->> p_field)::timestamptz;
    if not isfinite(v_value) then
      raise invalid_datetime_format;
    end if;
    return v_value;
  exception when data_exception then
    perform holdfast.refuse('HF004', format('%s must be a time such as 2026-01-31T12:00:00Z, got %s.', p_field,
      quote_literal(left(p_body ->> p_field, 60))), p_field);
  end;
  return null;
end $$;

-- The user behind this call by the claims that PostgREST and Supabase set, as auth.uid() reads them.
create or replace function holdfast.current_user_id() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_claims text := nullif(current_setting('request.jwt.claims', true), '');
begin
  return coalesce(
    nullif(current_setting('request.jwt.claim.sub', true), ''),
    nullif(v_claims::jsonb ->> 'sub', ''));
exception when data_exception then
  return null;
end $$;

-- Null for services and workers; for end users the only owner they may act as.
-- The role setting names who called, even inside a function that runs as its owner.
create or replace function holdfast.calling_user() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_role text := nullif(current_setting('role', true), 'none');
  v_user text;
begin
  if coalesce(v_role, session_user) not in ('anon', 'authenticated') then
    return null;
  end if;
  v_user := holdfast.current_user_id();
  if v_user is null then
    perform holdfast.refuse('HF005', 'This needs a signed-in user.', null, 'Send a token that has a subject.');
  end if;
  return v_user;
end $$;

-- How long things are kept by default.
create or replace function holdfast.keep_default(p_status text) returns interval
language plpgsql immutable set search_path = '' as $$
begin
  return (
  select case when p_status in ('failed', 'partial') then interval '7 days' else interval '1 day' end);
end $$;

-- Lanes and kinds are found or made here only. Nobody waits for anybody: two transactions that make the same lane at
-- once make two, and from then on everybody finds the older one. In a queue where owners take turns each has its own.
create or replace function holdfast.lane_for(
  p_queue text, p_type text, p_priority smallint, p_limit_key text, p_policy jsonb, p_owner text) returns bigint
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
  v_lane bigint;
  v_share text;
begin
  if p_owner is not null and exists (select from holdfast.queues q where q.name = p_queue and q.fair_owners) then
    v_share := p_owner;
  end if;
  select l.id into v_lane from holdfast.kinds k
  join holdfast.lanes l on l.kind_id = k.id and l.priority = p_priority and l.closed_at is null
    and coalesce(l.limit_key, '') = coalesce(p_limit_key, '') and l.limit_key is not distinct from p_limit_key
    and coalesce(l.share, '') = coalesce(v_share, '') and l.share is not distinct from v_share
  where k.queue = p_queue and k.type = p_type and k.policy = p_policy
  order by l.id limit 1;
  if v_lane is null then
    if octet_length(p_limit_key) > 1000 then
      perform holdfast.refuse('HF004', 'limit_key must be at most 1000 bytes long.', 'limit_key');
    end if;
    insert into holdfast.lanes (kind_id, queue, type, priority, limit_key, share, made_at)
    values (holdfast.kind_for(p_queue, p_type, p_policy), p_queue, p_type, p_priority, p_limit_key, v_share, holdfast.now())
    returning id into v_lane;
  elsif current_setting('transaction_isolation') <> 'read committed' then
    -- An old snapshot may show a lane that is gone: better to fail here, and be tried again, than to be in no lane.
    perform from holdfast.lanes l where l.id = v_lane for key share;
  end if;
  return v_lane;
end $$;

create or replace function holdfast.kind_for(p_queue text, p_type text, p_policy jsonb) returns bigint
language plpgsql set search_path = '' as $$
declare
  v_kind bigint;
begin
  perform holdfast.check_name(p_queue, 'queue'), holdfast.check_name(p_type, 'type');
  select k.id into v_kind from holdfast.kinds k where k.queue = p_queue and k.type = p_type and k.policy = p_policy order by k.id limit 1;
  if v_kind is null then
    insert into holdfast.kinds (queue, type, policy, attempts, base_s, cap_s, jitter, timeout_s, lease_s, crashes)
    values (p_queue, p_type, p_policy,
      coalesce(holdfast.number_in(p_policy, 'attempts', 1, 1000000), 5)::int,
      coalesce(holdfast.number_in(p_policy, 'base_s', 0, 31536000), 5),
      coalesce(holdfast.number_in(p_policy, 'cap_s', 0, 31536000), 900),
      coalesce(holdfast.number_in(p_policy, 'jitter', 0, 1), 0.2),
      coalesce(holdfast.number_in(p_policy, 'timeout_s', 0.001, 31536000), 600),
      coalesce(holdfast.number_in(p_policy, 'lease_s', 0.5, 86400), 60),
      coalesce(holdfast.number_in(p_policy, 'crashes', 1, 1000), 3)::int)
    returning id into v_kind;
  end if;
  return v_kind;
end $$;

call holdfast.allow('holdfast_worker', 'current_user_id');
call holdfast.allow('service_role', 'current_user_id');
call holdfast.allow('authenticated', 'current_user_id');
