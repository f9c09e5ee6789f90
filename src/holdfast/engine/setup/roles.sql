-- Create the roles. Roles belong to the server, not to one database: the first installation creates them, and every
-- other installation uses them as they are. Without the right to create roles nothing here fails: missing roles stay
-- missing, and the role that migrates owns all objects.
do $roles$
declare
  v_role text;
  v_modern constant boolean := pg_catalog.current_setting('server_version_num')::integer >= 160000;
begin
  foreach v_role in array array['holdfast_owner', 'holdfast_worker', 'anon', 'authenticated', 'service_role'] loop
    continue when exists (select from pg_catalog.pg_roles where rolname = v_role);
    begin
      execute pg_catalog.format('create role %I nologin', v_role);
      if v_role = 'service_role' then
        begin
          alter role service_role bypassrls;
        exception when insufficient_privilege then null;  -- then the role reads through functions only
        end;
      end if;
    exception
      when duplicate_object or unique_violation then null;  -- another installation on this server created it first
      when insufficient_privilege then raise notice 'holdfast: the current role may not create role %', v_role;
    end;
  end loop;
  -- Since PostgreSQL 16, the role that created holdfast_owner needs a separate grant to act as it.
  if exists (select from pg_catalog.pg_roles where rolname = 'holdfast_owner')
    and not pg_catalog.pg_has_role('holdfast_owner', case when v_modern then 'SET' else 'MEMBER' end)
  then
    begin
      execute pg_catalog.format(
        'grant holdfast_owner to %I%s', current_user, case when v_modern then ' with inherit true, set true' end);
    exception when insufficient_privilege then
      raise notice 'holdfast: % may not become holdfast_owner', current_user;
    end;
  end if;
end
$roles$;
