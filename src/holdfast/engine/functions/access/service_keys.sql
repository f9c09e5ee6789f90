-- Service keys.
--
-- A key is 256 random bits. Only its SHA-256 is stored: random keys need no slow hash. A service can have two valid
-- keys at once, so that it can rotate them without downtime.

-- Store a new service key by its SHA-256 and return the row without the hash.
create or replace function holdfast.create_service_key(
  p_name text, p_prefix text, p_hash bytea, p_scopes text[],
    p_expires_at timestamptz default null) returns holdfast.service_keys
language plpgsql security definer set search_path = '' as $$
declare
  v_key holdfast.service_keys;
begin
  if octet_length(p_hash) is distinct from 32 then
    perform holdfast.raise_error('HF004', 'hash must be a SHA-256 digest of 32 bytes.', 'hash');
  end if;
  if coalesce(cardinality(p_scopes), 0) = 0 then
    perform holdfast.raise_error('HF004', 'A service key needs at least one scope.', 'scopes',
      'Pass scopes such as jobs or messages.');
  end if;
  insert into holdfast.service_keys (id, name, prefix, hash, scopes, created_at, expires_at)
  values (holdfast.new_id(), holdfast.check_name(p_name, 'name'), holdfast.check_name(p_prefix, 'prefix'), p_hash,
    p_scopes,
    holdfast.now(), p_expires_at)
  returning * into v_key;
  v_key.hash := null;
  return v_key;
end $$;

-- Return the valid service key with this SHA-256, without the hash; all columns are null when no valid key matches.
-- The last use is recorded at most once a minute, and never waits for another writer.
create or replace function holdfast.verify_service_key(p_hash bytea) returns holdfast.service_keys
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_key holdfast.service_keys;
begin
  select * into v_key from holdfast.service_keys k
  where k.hash = p_hash and k.revoked_at is null and (k.expires_at is null or k.expires_at > v_now);
  if found and (v_key.last_used_at is null or v_key.last_used_at < v_now - interval '1 minute') then
    update holdfast.service_keys k set last_used_at = v_now
    where k.id = (select i.id from holdfast.service_keys i where i.id = v_key.id for update skip locked);
  end if;
  v_key.hash := null;
  return v_key;
end $$;

-- List up to 1000 service keys without their hashes, newest first.
create or replace function holdfast.list_service_keys() returns setof holdfast.service_keys
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select k.id, k.name, k.prefix, null::bytea, k.scopes, k.created_at, k.expires_at, k.last_used_at, k.revoked_at
  from holdfast.service_keys k order by k.created_at desc, k.id limit 1000;
end $$;

-- Return the service key with this id or prefix, valid or not, without the hash; all columns are null if there is none.
create or replace function holdfast.find_service_key(p_key text) returns holdfast.service_keys
language plpgsql stable security definer set search_path = '' as $$
declare
  v_key holdfast.service_keys;
begin
  select * into v_key from holdfast.service_keys k where k.prefix = p_key or k.id::text = p_key
  order by k.revoked_at is not null, k.created_at limit 1;
  v_key.hash := null;
  return v_key;
end $$;

-- Revoke the valid service keys with this id or prefix and return their number.
create or replace function holdfast.revoke_service_key(p_key text) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_count integer;
begin
  update holdfast.service_keys k set revoked_at = holdfast.now()
  where (k.prefix = p_key or k.id::text = p_key) and k.revoked_at is null;
  get diagnostics v_count = row_count;
  return v_count;
end $$;

-- Delete up to p_limit each of expired watches and old audit entries. Return the number of deleted rows.
create or replace function holdfast.tick_access(p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
  v_more integer;
begin
  delete from holdfast.watched_jobs w where (w.job_id, w.watcher) in (
    select i.job_id, i.watcher from holdfast.watched_jobs i where i.until < v_now limit p_limit for update skip locked);
  get diagnostics v_count = row_count;
  delete from holdfast.audit_log a where a.id = any (array(
    select i.id from holdfast.audit_log i where i.at < v_now - interval '400 days'
      limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  return v_count + v_more;
end $$;

call holdfast.grant_execute('service_role', 'create_service_key', 'verify_service_key', 'list_service_keys',
  'find_service_key', 'revoke_service_key');
