-- Dashboard sessions: who is signed in to the dashboard, and with what.
--
-- The cookie of a session is 256 random bits, of which only a hash is stored. A session ends when its row is deleted
-- (logout, or somebody ends it), when it expires, and when the service key that opened it is revoked or expires. Every
-- read checks the key, so that a revoked key needs no other statement to end its sessions.

-- Return whether a service key is neither revoked nor expired.
create or replace function holdfast.is_service_key_active(p_id uuid) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return exists (
    select from holdfast.service_keys k where k.id = p_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > holdfast.now()));
end $$;

-- Return the id of the active service key with this prefix, or null.
create or replace function holdfast.find_active_service_key(p_prefix text) returns uuid
language plpgsql stable set search_path = '' as $$
begin
  return (
    select k.id from holdfast.service_keys k where k.prefix = p_prefix and holdfast.is_service_key_active(k.id)
    order by k.created_at desc limit 1);
end $$;

-- Return whether a session has not expired, and the service key that opened it is active.
create or replace function holdfast.is_session_active(p_session holdfast.dashboard_sessions) returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return p_session.expires_at > holdfast.now()
    and (p_session.key_id is null or holdfast.is_service_key_active(p_session.key_id));
end $$;

-- Return whether two sessions belong to the same login: the same service key, or login links for the same name and role.
create or replace function holdfast.is_same_login(p_a holdfast.dashboard_sessions, p_b holdfast.dashboard_sessions)
  returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return (p_a.login, p_a.key_id, p_a.name, p_a.role, p_a.tenant)
    is not distinct from (p_b.login, p_b.key_id, p_b.name, p_b.role, p_b.tenant);
end $$;

-- Start a session and return its id. p_login is `key`, `settings_key` or `link`; p_key is the prefix of the service key
-- for `key`. Return null when that key is not active. Control characters in the address and the user agent are removed.
create or replace function holdfast.start_dashboard_session(p_hash bytea, p_login text, p_key text, p_name text,
  p_role text, p_tenant text, p_address text, p_user_agent text, p_lifetime_s double precision)
returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_key uuid := case when p_login = 'key' then holdfast.find_active_service_key(p_key) end;
  v_id uuid := holdfast.new_id();
begin
  if p_login = 'key' and v_key is null then
    return null;
  end if;
  insert into holdfast.dashboard_sessions (id, hash, login, key_id, name, role, tenant, address, user_agent, created_at,
    last_seen_at, expires_at)
  values (v_id, p_hash, p_login, v_key, holdfast.check_name(p_name, 'name'), holdfast.check_name(p_role, 'role'),
    p_tenant, left(regexp_replace(p_address, '[\x01-\x1f\x7f]', '', 'g'), 100),
    left(regexp_replace(p_user_agent, '[\x01-\x1f\x7f]', '', 'g'), 300), v_now, v_now,
    v_now + least(p_lifetime_s, 86400) * interval '1 second');
  return v_id;
end $$;

-- Return the active session with one of these hashes, or no row. The last use is recorded at most once a minute, and
-- never waits for another writer.
create or replace function holdfast.find_dashboard_session(p_hashes bytea[])
returns table (id uuid, name text, role text, tenant text, expires_at timestamptz)
language plpgsql security definer set search_path = '' as $$
declare
  v_session holdfast.dashboard_sessions;
begin
  select * into v_session from holdfast.dashboard_sessions s where s.hash = any (p_hashes);
  if not found or not holdfast.is_session_active(v_session) then
    return;
  end if;
  perform holdfast.record_session_use(array[v_session.id]);
  return query select v_session.id, v_session.name, v_session.role, v_session.tenant, least(v_session.expires_at,
    (select k.expires_at from holdfast.service_keys k where k.id = v_session.key_id));
end $$;

-- Record that these sessions are in use, at most once a minute for each.
create or replace function holdfast.record_session_use(p_sessions uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  if exists (select from holdfast.dashboard_sessions s where s.id = any (p_sessions)
    and s.last_seen_at < v_now - interval '1 minute') then
    update holdfast.dashboard_sessions s set last_seen_at = v_now where s.id in (
      select i.id from holdfast.dashboard_sessions i where i.id = any (p_sessions)
        and i.last_seen_at < v_now - interval '1 minute' for update skip locked);
  end if;
end $$;

-- List up to 1000 active sessions, the last used first: all, or those of the same login as one session.
create or replace function holdfast.list_dashboard_sessions(p_same_login_as uuid default null)
returns table (id uuid, login text, key_name text, key_prefix text, name text, role text, tenant text, address text,
  user_agent text, created_at timestamptz, last_seen_at timestamptz, expires_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_column
declare
  v_like holdfast.dashboard_sessions;
begin
  select * into v_like from holdfast.dashboard_sessions s where s.id = p_same_login_as;
  return query
  select s.id, s.login, k.name, k.prefix, s.name, s.role, s.tenant, s.address, s.user_agent, s.created_at,
    s.last_seen_at, least(s.expires_at, k.expires_at)
  from holdfast.dashboard_sessions s left join holdfast.service_keys k on k.id = s.key_id
  where holdfast.is_session_active(s) and (p_same_login_as is null or holdfast.is_same_login(s, v_like))
  order by s.last_seen_at desc, s.id limit 1000;
end $$;

-- End one session and return whether it was active.
create or replace function holdfast.end_dashboard_session(p_id uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_session holdfast.dashboard_sessions;
begin
  delete from holdfast.dashboard_sessions s where s.id = p_id returning * into v_session;
  return found and holdfast.is_session_active(v_session);
end $$;

-- End all sessions but p_except, and return how many of them were active. p_same_login_as: only sessions of the same
-- login as this session. p_roles: only sessions with these roles.
create or replace function holdfast.end_dashboard_sessions(p_except uuid default null,
  p_same_login_as uuid default null, p_roles text[] default null)
returns integer
language plpgsql security definer set search_path = '' as $$
declare
  v_like holdfast.dashboard_sessions;
  v_count integer;
begin
  select * into v_like from holdfast.dashboard_sessions s where s.id = p_same_login_as;
  with ended as (
    delete from holdfast.dashboard_sessions s
    where s.id is distinct from p_except and (p_same_login_as is null or holdfast.is_same_login(s, v_like))
      and (p_roles is null or s.role = any (p_roles))
    returning s
  )
  select count(*) filter (where holdfast.is_session_active(e.s)) into v_count from ended e;
  return v_count;
end $$;

-- Return which of these service keys (by prefix) and sessions are no longer active. Open event streams ask twice a
-- second for all of them in one call, and close.
create or replace function holdfast.list_ended_access(p_keys text[], p_sessions uuid[])
returns table (key_prefix text, session_id uuid)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select u.prefix, null::uuid from unnest(p_keys) as u (prefix)
  where holdfast.find_active_service_key(u.prefix) is null
  union all
  select null, u.id from unnest(p_sessions) as u (id)
  where not exists (select from holdfast.dashboard_sessions s where s.id = u.id and holdfast.is_session_active(s))
    and not exists (select from holdfast.user_sessions s where s.id = u.id and s.expires_at > holdfast.now());
end $$;

-- Delete up to p_limit each of expired sessions (of the dashboard and of users) and expired stream tickets. Return their number. Those of a revoked
-- service key open nothing, and wait for their expiry.
create or replace function holdfast.tick_sessions(p_limit integer) returns integer
language plpgsql set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_count integer;
  v_more integer;
begin
  delete from holdfast.dashboard_sessions s where s.id = any (array(
    select i.id from holdfast.dashboard_sessions i where i.expires_at < v_now limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  delete from holdfast.stream_tickets t where t.hash = any (array(
    select i.hash from holdfast.stream_tickets i where i.expires_at < v_now limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  v_count := v_count + v_more;
  delete from holdfast.user_sessions s where s.id = any (array(
    select i.id from holdfast.user_sessions i where i.expires_at < v_now limit p_limit for update skip locked));
  get diagnostics v_more = row_count;
  return v_count + v_more;
end $$;

call holdfast.grant_execute('service_role', 'start_dashboard_session', 'find_dashboard_session', 'record_session_use',
  'list_dashboard_sessions', 'end_dashboard_session', 'end_dashboard_sessions', 'list_ended_access');
