-- Whom a connection acts for. The list of who may act is closed: services act for every owner, the role
-- `authenticated` acts for the user in its JWT claims, and every other role acts for nobody. The setting `role` names
-- the role that the connection has switched to, even inside a function that runs with its owner's rights.

-- Mark a role as a service by the right to execute this function, which does nothing. Members of service_role and
-- holdfast_worker, the owner of the schema and superusers have it; `holdfast migrate grants` grants it to others.
create or replace function holdfast.act_for_all_owners() returns void
language plpgsql stable set search_path = '' as $$
begin
end $$;

-- Return the user id from the JWT claims that PostgREST and Supabase set, as auth.uid() does. Null without a user, and
-- null for every role other than `authenticated`: a login that was granted `authenticated` must switch to the role.
create or replace function holdfast.get_user_id_from_jwt_claims() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_claims text := nullif(current_setting('request.jwt.claims', true), '');
begin
  if coalesce(nullif(current_setting('role', true), 'none'), session_user) <> 'authenticated' then
    return null;
  end if;
  return coalesce(
    nullif(current_setting('request.jwt.claim.sub', true), ''),
    nullif(v_claims::jsonb ->> 'sub', ''));
exception when data_exception then
  return null;
end $$;

-- Return the user id from the JWT claims as a uuid, for policies on tables whose users are uuids. Null unless it is
-- spelled as PostgreSQL prints it: two spellings of one uuid are two users everywhere else.
create or replace function holdfast.get_user_uuid_from_jwt_claims() returns uuid
language plpgsql stable set search_path = '' as $$
declare
  v_user text := holdfast.get_user_id_from_jwt_claims();
begin
  return case when v_user ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then v_user::uuid end;
end $$;

-- Return the id of the end user who calls, the only owner for whom the user may act. Return null for services, which
-- may act for every owner. Raise HF005 for everybody else. Submits call this function: it reads no table.
create or replace function holdfast.get_end_user_id() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_role text := coalesce(nullif(current_setting('role', true), 'none'), session_user);
  v_user text;
begin
  if v_role not in ('anon', 'authenticated') then
    if has_function_privilege(v_role, 'holdfast.act_for_all_owners()'::regprocedure, 'execute') then
      return null;
    end if;
    perform holdfast.raise_error('HF005', format('The role %s is neither a user nor a service of Holdfast.', v_role),
      null, format('Run: holdfast migrate grants --role %s. To act for a user, run: set role authenticated.', v_role));
  end if;
  v_user := holdfast.get_user_id_from_jwt_claims();
  if v_user is null then
    perform holdfast.raise_error('HF005', 'This function needs a signed-in user.', null,
      'Send a JWT that has a sub claim.');
  end if;
  return v_user;
end $$;

call holdfast.grant_execute('service_role', 'act_for_all_owners');
call holdfast.grant_execute('holdfast_worker', 'act_for_all_owners');
-- Row security policies call these functions with the rights of the user.
call holdfast.grant_execute('authenticated', 'get_user_id_from_jwt_claims', 'get_user_uuid_from_jwt_claims');
