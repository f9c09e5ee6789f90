-- Login links: links that log a person in to the dashboard once.

-- Store a login link as the SHA-256 of its token. The link expires after p_lifetime_s seconds.
create or replace function holdfast.store_login_link(
  p_hash bytea, p_name text, p_role text, p_lifetime_s double precision) returns void
language plpgsql security definer set search_path = '' as $$
begin
  insert into holdfast.login_links (hash, name, role, expires_at)
  values (p_hash, holdfast.check_name(p_name, 'name'), p_role, holdfast.now() + p_lifetime_s * interval '1 second');
end $$;

-- Mark a login link as used and return its {name, role}. Return null when the link was used before, has expired or
-- does not exist.
create or replace function holdfast.redeem_login_link(p_hash bytea) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_link holdfast.login_links;
begin
  update holdfast.login_links k set used_at = holdfast.now()
  where k.hash = p_hash and k.used_at is null and k.expires_at > holdfast.now() returning * into v_link;
  return case when found then jsonb_build_object('name', v_link.name, 'role', v_link.role) end;
end $$;

call holdfast.grant_execute('service_role', 'store_login_link', 'redeem_login_link');
