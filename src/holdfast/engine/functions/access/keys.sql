-- Keys of services, tickets for streams, and what one user may have at once.
--
-- A key is 256 random bits, and only its SHA-256 is here: a fast hash is enough for something nobody can guess. Two keys
-- of one service may live at once, so that it can change them without a gap.

create or replace function holdfast.create_key(
  p_name text, p_prefix text, p_hash bytea, p_scopes text[], p_expires_at timestamptz default null) returns holdfast.service_keys
language plpgsql security definer set search_path = '' as $$
declare
  v_key holdfast.service_keys;
begin
  if octet_length(p_hash) is distinct from 32 then
    perform holdfast.refuse('HF004', 'hash must be a SHA-256.', 'hash');
  end if;
  if coalesce(cardinality(p_scopes), 0) = 0 then
    perform holdfast.refuse('HF004', 'A key without a scope opens nothing.', 'scopes', 'Name at least one.');
  end if;
  insert into holdfast.service_keys (id, name, prefix, hash, scopes, created_at, expires_at)
  values (holdfast.new_id(), holdfast.check_name(p_name, 'name'), holdfast.check_name(p_prefix, 'prefix'), p_hash, p_scopes,
    holdfast.now(), p_expires_at)
  returning * into v_key;
  v_key.hash := null;
  return v_key;
end $$;

-- The live key with this hash. Its last use is written at most once a minute, and never waits for another writer.
create or replace function holdfast.check_key(p_hash bytea) returns holdfast.service_keys
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

create or replace function holdfast.list_keys() returns setof holdfast.service_keys
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select k.id, k.name, k.prefix, null::bytea, k.scopes, k.created_at, k.expires_at, k.last_used_at, k.revoked_at
  from holdfast.service_keys k order by k.created_at desc, k.id limit 1000;
end $$;

create or replace function holdfast.revoke_key(p_key text) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_count integer;
begin
  update holdfast.service_keys k set revoked_at = holdfast.now()
  where (k.prefix = p_key or k.id::text = p_key) and k.revoked_at is null;
  get diagnostics v_count = row_count;
  return v_count;
end $$;

create or replace function holdfast.issue_ticket(p_hash bytea, p_job uuid, p_kind text, p_owner text, p_life_s double precision)
returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.tickets (hash, kind, job_id, owner, expires_at)
  values (p_hash, p_kind, p_job, p_owner, holdfast.now() + least(p_life_s, 86400) * interval '1 second');
end $$;

-- Deleting decides: of two that show the same ticket one finds it.
create or replace function holdfast.redeem_ticket(p_hash bytea, p_job uuid, p_pass bytea, p_life_s double precision)
returns table (job_id uuid, kind text, owner text, expires_at timestamptz)
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_column
begin
  return query
  with used as (
    delete from holdfast.tickets t
    where t.hash = p_hash and t.job_id = p_job and t.kind = 'ticket' returning t.*
  ), kept as (
    insert into holdfast.tickets (hash, kind, job_id, owner, expires_at)
    select p_pass, 'pass', u.job_id, u.owner, holdfast.now() + least(p_life_s, 86400) * interval '1 second'
    from used u where u.expires_at > holdfast.now()
    returning tickets.*
  )
  select k.job_id, k.kind, k.owner, k.expires_at from kept k;
end $$;

create or replace function holdfast.check_pass(p_hash bytea, p_job uuid)
returns table (job_id uuid, kind text, owner text, expires_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select t.job_id, t.kind, t.owner, t.expires_at from holdfast.tickets t
  where t.hash = p_hash and t.job_id = p_job and t.kind = 'pass' and t.expires_at > holdfast.now();
end $$;

-- Before one more job of an owner: refuses when as many as allowed have not ended. The lock lasts until the end of the
-- transaction, so that two at once cannot both take the last place.
create or replace function holdfast.reserve_jobs(p_owner text, p_most integer) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
  v_there bigint;
begin
  if p_owner <> v_user then
    perform holdfast.refuse('HF005', 'Jobs can only be counted for yourself.', 'owner');
  end if;
  perform pg_advisory_xact_lock(1213154901, hashtext(p_owner));
  select count(*) into v_there from (
    (select from holdfast.tasks t where t.owner = p_owner and t.job_id is null limit p_most)
    union all
    (select from holdfast.jobs j where j.owner = p_owner and j.finished_at is null limit p_most)
  ) as alive;
  if v_there >= p_most then
    perform holdfast.refuse('HF006', format('You have %s jobs that have not ended, which is the most at once.', v_there), null,
      'Wait for some of them, or cancel some.');
  end if;
end $$;

create or replace function holdfast.has_key(p_owner text, p_key text) returns boolean
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.calling_user();
begin
  return exists (
    select from holdfast.keys k where k.scope = 'key:' || coalesce(v_user, p_owner, '') and k.key = p_key);
end $$;

-- Both in one call, for the sake of the round trip. A repeated request is answered with its job, quota or not.
create or replace function holdfast.submit_within(p_job jsonb, p_owner text, p_most integer) returns jsonb
language plpgsql set search_path = '' as $$
begin
  if not holdfast.has_key(p_owner, p_job ->> 'key') then
    perform holdfast.reserve_jobs(p_owner, p_most);
  end if;
  return holdfast.submit(p_job);
end $$;

create or replace function holdfast.tick_access(p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
  v_more integer;
begin
  delete from holdfast.tickets t where t.hash = any (array(
    select i.hash from holdfast.tickets i where i.expires_at < v_now limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  delete from holdfast.watches w where (w.job_id, w.watcher) in (
    select i.job_id, i.watcher from holdfast.watches i where i.until < v_now limit p_limit for update skip locked);
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.audit a where a.id = any (array(
    select i.id from holdfast.audit i where i.at < v_now - interval '400 days' limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  return v_count + v_more;
end $$;

call holdfast.allow('service_role', 'create_key', 'check_key', 'list_keys', 'revoke_key', 'issue_ticket', 'redeem_ticket',
  'check_pass', 'reserve_jobs', 'has_key', 'submit_within');
call holdfast.allow('authenticated', 'reserve_jobs', 'has_key', 'submit_within');
