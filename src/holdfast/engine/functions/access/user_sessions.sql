-- Sessions of users: who is signed in to the pages of systems.
--
-- A session starts with a valid token, has its claims, and ends with it, after twelve hours, or when its row is deleted.
-- The page forgets the token, so nothing is left in the browser after signing out.

-- Start a session and return its id. It lasts until p_expires_at, and twelve hours at most. A user has 20 sessions; the
-- oldest ones end.
create or replace function holdfast.start_user_session(p_hash bytea, p_owner text, p_claims jsonb,
  p_expires_at timestamptz default null, p_address text default null, p_user_agent text default null) returns uuid
language plpgsql security definer set search_path = '' as $$
declare
  v_max_sessions constant integer := 20;
  v_now timestamptz := holdfast.now();
  v_id uuid := holdfast.new_id();
begin
  delete from holdfast.user_sessions s where s.id in (select o.id from holdfast.user_sessions o where o.owner = p_owner
    order by o.created_at desc, o.id desc offset v_max_sessions - 1);
  insert into holdfast.user_sessions (id, hash, owner, claims, address, user_agent, created_at, expires_at)
  values (v_id, p_hash, p_owner, p_claims, left(p_address, 100), left(p_user_agent, 400), v_now,
    least(p_expires_at, v_now + interval '12 hours'));
  return v_id;
end $$;

-- Return the session with one of these hashes, or no row if it has ended.
create or replace function holdfast.find_user_session(p_hashes bytea[])
returns table (id uuid, claims jsonb, expires_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query select s.id, s.claims, s.expires_at from holdfast.user_sessions s
  where s.hash = any (p_hashes) and s.expires_at > holdfast.now();
end $$;

-- End a session and return whether it existed.
create or replace function holdfast.end_user_session(p_id uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  delete from holdfast.user_sessions s where s.id = p_id;
  return found;
end $$;

call holdfast.grant_execute('service_role', 'start_user_session', 'find_user_session', 'end_user_session');
