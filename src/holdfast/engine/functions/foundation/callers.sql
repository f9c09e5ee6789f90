-- The user on whose behalf a function was called.

-- Return the user id from the JWT claims that PostgREST and Supabase set, as auth.uid() does. Null without a user.
create or replace function holdfast.get_user_id_from_jwt_claims() returns text
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

-- Return the id of the end user who calls, the only owner for whom the user may act. Return null for services and
-- workers, which may act for every owner. The setting `role` names the caller even inside a function that runs with its
-- owner's rights.
create or replace function holdfast.get_end_user_id() returns text
language plpgsql stable set search_path = '' as $$
declare
  v_role text := nullif(current_setting('role', true), 'none');
  v_user text;
begin
  if coalesce(v_role, session_user) not in ('anon', 'authenticated') then
    return null;
  end if;
  v_user := holdfast.get_user_id_from_jwt_claims();
  if v_user is null then
    perform holdfast.raise_error('HF005', 'This function needs a signed-in user.', null,
      'Send a JWT that has a sub claim.');
  end if;
  return v_user;
end $$;

-- Row security policies call get_user_id_from_jwt_claims with the rights of the user.
call holdfast.grant_execute('authenticated', 'get_user_id_from_jwt_claims');
