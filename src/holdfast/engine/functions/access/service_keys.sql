-- Service keys, tickets for event streams, and the limit of unfinished jobs per user.
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

-- Store a ticket, or a pass, for the event stream of a job. It is valid for p_lifetime_s seconds, at most a day.
create or replace function holdfast.store_stream_ticket(p_hash bytea, p_job uuid, p_kind text, p_owner text,
  p_lifetime_s double precision)
returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.stream_tickets (hash, kind, job_id, owner, expires_at)
  values (p_hash, p_kind, p_job, p_owner, holdfast.now() + least(p_lifetime_s, 86400) * interval '1 second');
end $$;

-- Replace a ticket for an event stream by a pass and return the pass; no row when the ticket is not valid. Of two
-- callers that present the same ticket, only the one whose DELETE finds it succeeds.
create or replace function holdfast.redeem_stream_ticket(p_hash bytea, p_job uuid, p_pass bytea,
  p_lifetime_s double precision)
returns table (job_id uuid, kind text, owner text, expires_at timestamptz)
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  with used as (
    delete from holdfast.stream_tickets t
    where t.hash = p_hash and t.job_id = p_job and t.kind = 'ticket' returning t.*
  ), kept as (
    insert into holdfast.stream_tickets (hash, kind, job_id, owner, expires_at)
    select p_pass, 'pass', u.job_id, u.owner, holdfast.now() + least(p_lifetime_s, 86400) * interval '1 second'
    from used u where u.expires_at > holdfast.now()
    returning stream_tickets.*
  )
  select k.job_id, k.kind, k.owner, k.expires_at from kept k;
end $$;

-- Return the valid pass with this SHA-256 for the event stream of a job, or no row.
create or replace function holdfast.verify_stream_pass(p_hash bytea, p_job uuid)
returns table (job_id uuid, kind text, owner text, expires_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select t.job_id, t.kind, t.owner, t.expires_at from holdfast.stream_tickets t
  where t.hash = p_hash and t.job_id = p_job and t.kind = 'pass' and t.expires_at > holdfast.now();
end $$;

-- Raise HF006 when the owner already has p_max_unfinished unfinished jobs. The lock lasts until the end of the
-- transaction, so that two concurrent submissions cannot both take the last place. A submission whose idempotency key
-- exists already returns its job, so it is not limited.
create or replace function holdfast.check_unfinished_job_limit(p_owner text, p_max_unfinished integer,
  p_key text default null)
returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_unfinished bigint;
begin
  if exists (
    select from holdfast.idempotency_keys k where k.scope = 'key:' || coalesce(v_user, p_owner, '')
      and k.key = p_key) then
    return;
  end if;
  if p_owner <> v_user then
    perform holdfast.raise_error('HF005', 'You can only check your own job limit.', 'owner');
  end if;
  perform pg_advisory_xact_lock(1213154901, hashtext(p_owner));
  select count(*) into v_unfinished from (
    (select from holdfast.tasks t where t.owner = p_owner and t.job_id is null limit p_max_unfinished)
    union all
    (select from holdfast.jobs j where j.owner = p_owner and j.finished_at is null limit p_max_unfinished)
  ) as unfinished;
  if v_unfinished >= p_max_unfinished then
    perform holdfast.raise_error('HF006', format('You have %s unfinished jobs, which is the maximum.', v_unfinished),
      null,
      'Wait until some of them end, or cancel some.');
  end if;
end $$;

-- Submit a job, or raise HF006 when the owner has p_max_unfinished unfinished jobs, in one round trip.
create or replace function holdfast.submit_within_job_limit(
  p_job jsonb, p_owner text, p_max_unfinished integer) returns jsonb
language plpgsql set search_path = '' as $$
begin
  perform holdfast.check_unfinished_job_limit(p_owner, p_max_unfinished, p_job ->> 'key');
  return holdfast.submit(p_job);
end $$;

-- Delete up to p_limit each of expired stream tickets, expired watches and old audit entries. Return the number of
-- deleted rows.
create or replace function holdfast.tick_access(p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
  v_more integer;
begin
  delete from holdfast.stream_tickets t where t.hash = any (array(
    select i.hash from holdfast.stream_tickets i where i.expires_at < v_now limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  delete from holdfast.watched_jobs w where (w.job_id, w.watcher) in (
    select i.job_id, i.watcher from holdfast.watched_jobs i where i.until < v_now limit p_limit for update skip locked);
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.audit_log a where a.id = any (array(
    select i.id from holdfast.audit_log i where i.at < v_now - interval '400 days'
      limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  return v_count + v_more;
end $$;

call holdfast.grant_execute('service_role', 'create_service_key', 'verify_service_key', 'list_service_keys',
  'revoke_service_key', 'store_stream_ticket', 'redeem_stream_ticket', 'verify_stream_pass',
  'check_unfinished_job_limit', 'submit_within_job_limit');
call holdfast.grant_execute('authenticated', 'check_unfinished_job_limit', 'submit_within_job_limit');
