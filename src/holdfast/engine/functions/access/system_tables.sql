-- Row security of the tables of systems (bundled applications, and yours that are built the same way).

-- Protect a table that has a column user_id, after it was created. The owner of the table, services and workers read and
-- change all rows. Users read their own rows (p_user_access `select`), have all rights on them (`all`) or see nothing
-- (`none`). All other rights of these roles are revoked. Calling this again gives the same result.
create or replace procedure holdfast.protect_system_table(p_table regclass, p_user_access text default 'select')
language plpgsql set search_path = '' as $$
declare
  v_own constant text := 'user_id = (select holdfast.get_user_uuid_from_jwt_claims())';
  v_role text;
  v_owner text;
  v_schema text;
begin
  if p_user_access is null or p_user_access not in ('select', 'all', 'none') then
    perform holdfast.raise_error('HF004', 'user_access must be select, all or none.', 'user_access');
  end if;
  select pg_catalog.pg_get_userbyid(c.relowner), c.relnamespace::regnamespace::text into v_owner, v_schema
  from pg_catalog.pg_class c where c.oid = p_table;
  execute format('alter table %s enable row level security', p_table);
  execute format('alter table %s force row level security', p_table);
  execute format('revoke all on %s from public', p_table);
  execute format('drop policy if exists owner_all on %s', p_table);
  execute format('create policy owner_all on %s to %I using (true) with check (true)', p_table, v_owner);
  foreach v_role in array array['service_role', 'holdfast_worker', 'anon', 'authenticated'] loop
    continue when not exists (select from pg_catalog.pg_roles where rolname = v_role);
    execute format('revoke all on %s from %I', p_table, v_role);
    execute format('drop policy if exists %I on %s', v_role, p_table);
    continue when v_role = 'anon' or (v_role = 'authenticated' and p_user_access = 'none');
    execute format('grant usage on schema %s to %I', v_schema, v_role);
    execute format('grant select on %s to %I', p_table, v_role);
    if v_role <> 'authenticated' or p_user_access = 'all' then
      execute format('grant insert, update, delete on %s to %I', p_table, v_role);
    end if;
    if v_role = 'authenticated' then
      execute format('create policy authenticated on %s for %s to authenticated using (%s)', p_table, p_user_access,
        v_own);
    else
      execute format('create policy %1$I on %2$s to %1$I using (true) with check (true)', v_role, p_table);
    end if;
  end loop;
end $$;
