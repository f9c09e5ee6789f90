-- Ids of jobs and tasks, and nonces of leases.
--
-- An id is a UUIDv7: 48 bits of milliseconds, 12 bits of fractions of a millisecond, then random bits. One byte of
-- the random bits is the number of the shard that created the id (option `shard`, default 0), so that an id tells
-- where it belongs.

-- Return the first part of an id, which encodes the time.
create or replace function holdfast.build_id_prefix(p_now timestamptz) returns text
language plpgsql immutable strict parallel safe set search_path = '' as $$
declare
  v_us bigint := extract(epoch from p_now) * 1000000;
  v_ms text := lpad(to_hex(v_us / 1000), 12, '0');
begin
  return left(v_ms, 8) || '-' || right(v_ms, 4) || '-7' || lpad(to_hex((v_us % 1000) * 4096 / 1000), 3, '0') || '-';
end $$;

-- Return the number of this shard as two hexadecimal digits.
create or replace function holdfast.get_shard_byte_hex() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_shard integer := (select (value #>> '{}')::int & 255 from holdfast.options where name = 'shard');
begin
  return lpad(to_hex(coalesce(v_shard, 0)), 2, '0');
end $$;

-- A single expression without a pinned search_path, so that it is inlined into bulk inserts. Every name in it is
-- qualified.
create or replace function holdfast.new_id(p_prefix text, p_shard text) returns uuid
language sql volatile as $$
  select pg_catalog.overlay(pg_catalog.overlay(pg_catalog.gen_random_uuid()::pg_catalog.text, p_prefix, 1, 19), p_shard,
    22, 2)::pg_catalog.uuid
$$;

create or replace function holdfast.new_id() returns uuid
language plpgsql volatile set search_path = '' as $$
begin
  return (
  select holdfast.new_id(holdfast.build_id_prefix(holdfast.now()), holdfast.get_shard_byte_hex()));
end $$;

-- Return the time at which an id was created.
create or replace function holdfast.get_id_time(p_id uuid) returns timestamptz
language plpgsql immutable strict parallel safe set search_path = '' as $$
begin
  return (
  select 'epoch'::timestamptz + (h.ms + h.fraction / 4096.0) * interval '1 millisecond'
  from (select ('x0000' || substr(t, 1, 8) || substr(t, 10, 4))::bit(64)::bigint as ms,
               ('x' || lpad(substr(t, 16, 3), 8, '0'))::bit(32)::int as fraction
        from (select p_id::text as t) as id) as h);
end $$;

-- Return a random nonce of 63 bits for a lease. Another timeline of this database, such as a restored backup, does not
-- repeat it.
create or replace function holdfast.new_nonce() returns bigint
language plpgsql volatile set search_path = '' as $$
begin
  return ('x' || replace(right(gen_random_uuid()::text, 17), '-', ''))::bit(64)::bigint & 9223372036854775807;
end $$;
