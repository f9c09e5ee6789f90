-- Rights on functions and tables. This file is always applied first and revokes every right of our roles. So the
-- end of each other file lists all rights on its functions, one line per role:
--
--     call holdfast.grant_execute('holdfast_worker', 'claim_tasks', 'heartbeat_task');
--     call holdfast.grant_execute('authenticated', 'submit', 'get_job', 'cancel_job');
--     call holdfast.grant_select_columns('authenticated', 'jobs', 'id', 'status');
--
-- A name covers all its overloads. A name that does not exist is an error. A role that does not exist is skipped,
-- because some servers do not allow roles to be created. Do not write grants anywhere else, also not in migrations.

-- Revoke every right of these roles on the objects that we own. Objects of other owners are not changed.
create or replace procedure holdfast.revoke_all_rights(variadic p_roles text[])
language plpgsql
set search_path = ''
as $$
declare
  v_roles text;
  v_object_type text;
  v_objects text;
begin
  select pg_catalog.string_agg(pg_catalog.quote_ident(r), ', ') into v_roles
  from pg_catalog.unnest(p_roles) r
  where r = 'public' or exists (select from pg_catalog.pg_roles where rolname = r);
  if v_roles is null then
    return;
  end if;
  execute pg_catalog.format('revoke all on schema holdfast from %s', v_roles);
  for v_object_type, v_objects in
    select object_type, pg_catalog.string_agg(object, ', ')
    from (
      select 'routine' as object_type, p.oid::pg_catalog.regprocedure::text as object
      from pg_catalog.pg_proc p
      where p.pronamespace = 'holdfast'::pg_catalog.regnamespace
        and pg_catalog.pg_get_userbyid(p.proowner) = current_user
      union all
      select case c.relkind when 'S' then 'sequence' else 'table' end, c.oid::pg_catalog.regclass::text
      from pg_catalog.pg_class c
      where c.relnamespace = 'holdfast'::pg_catalog.regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')
        and pg_catalog.pg_get_userbyid(c.relowner) = current_user
        and (c.relacl is not null or exists (
          select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attacl is not null))
    ) owned
    group by object_type
  loop
    execute pg_catalog.format('revoke all on %s %s from %s', v_object_type, v_objects, v_roles);
  end loop;
end
$$;

-- Grant EXECUTE on every overload of the named functions to a role. A role that does not exist is skipped.
create or replace procedure holdfast.grant_execute(p_role text, variadic p_functions text[])
language plpgsql
set search_path = ''
as $$
declare
  v_name text;
  v_signatures text;
begin
  foreach v_name in array p_functions loop
    select pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::text, ', ') into v_signatures
    from pg_catalog.pg_proc p
    where p.pronamespace = 'holdfast'::pg_catalog.regnamespace and p.proname = v_name;
    if v_signatures is null then
      raise exception 'function holdfast.% does not exist; it cannot be granted to %', v_name,
        p_role using errcode = '42883';
    end if;
    continue when not exists (select from pg_catalog.pg_roles where rolname = p_role);
    execute pg_catalog.format('grant usage on schema holdfast to %I', p_role);
    execute pg_catalog.format('grant execute on routine %s to %I', v_signatures, p_role);
  end loop;
end
$$;

-- Grant SELECT on columns of a table. Row level security protects the rows, the list of columns protects what operators
-- alone may see: errors, arguments, workers, leases. A column that does not exist is an error.
create or replace procedure holdfast.grant_select_columns(p_role text, p_table text, variadic p_columns text[])
language plpgsql
set search_path = ''
as $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = p_role) then
    return;
  end if;
  execute pg_catalog.format('grant usage on schema holdfast to %I', p_role);
  execute pg_catalog.format('grant select (%s) on holdfast.%I to %I',
    (select pg_catalog.string_agg(pg_catalog.quote_ident(c), ', ') from pg_catalog.unnest(p_columns) c), p_table, p_role);
end
$$;

-- Create or replace a view, unless it has this query already: to replace a view locks it against readers until the
-- migration commits. PostgreSQL stores a query in its own form, so the two are compared as views.
create or replace procedure holdfast.replace_view(p_name text, p_query text)
language plpgsql
set search_path = ''
as $$
declare
  v_scratch text := p_name || '_scratch';
  v_is_same boolean;
begin
  execute pg_catalog.format('create view holdfast.%I as %s', v_scratch, p_query);
  select coalesce(pg_catalog.bool_and(pg_catalog.pg_get_viewdef(c.oid) = pg_catalog.pg_get_viewdef(s.oid)), false)
    into v_is_same
  from pg_catalog.pg_class c, pg_catalog.pg_class s
  where c.relnamespace = 'holdfast'::pg_catalog.regnamespace and c.relname = p_name
    and s.relnamespace = 'holdfast'::pg_catalog.regnamespace and s.relname = v_scratch;
  execute pg_catalog.format('drop view holdfast.%I', v_scratch);
  if not v_is_same then
    execute pg_catalog.format('create or replace view holdfast.%I as %s', p_name, p_query);
  end if;
end
$$;

-- Make views run with the rights of their reader. Call it after `replace_view`:
-- `call holdfast.set_security_invoker('all_tasks')`. The option in the statement itself is an error on PostgreSQL 14.
create or replace procedure holdfast.set_security_invoker(variadic p_views text[])
language plpgsql
set search_path = ''
as $$
declare
  v_name text;
begin
  foreach v_name in array p_views loop
    continue when pg_catalog.current_setting('server_version_num')::integer < 150000 or exists (
      select from pg_catalog.pg_class c where c.relnamespace = 'holdfast'::pg_catalog.regnamespace and c.relname = v_name
        and c.reloptions @> '{security_invoker=true}');
    execute pg_catalog.format('alter view holdfast.%I set (security_invoker = true)', v_name);
  end loop;
end
$$;

-- Return whether the extension provides its schema: it is installed, or the schema exists and was not created by
-- Holdfast. Function files marked `unless-extension` are then skipped.
create or replace function holdfast.is_provided_by_extension(p_extension text) returns boolean
language sql stable
set search_path = ''
as $$
  select exists (select from pg_catalog.pg_extension where extname = p_extension)
    or exists (
      select from pg_catalog.pg_namespace n
      where n.nspname = p_extension
        and pg_catalog.obj_description(n.oid, 'pg_namespace') is distinct from 'message queues by Holdfast')
$$;

-- Return the applied migrations and the installed function set. The installer, workers and `holdfast doctor` call it.
create or replace function holdfast.get_installed_schema() returns jsonb
language sql stable security definer
set search_path = ''
as $$
  select pg_catalog.jsonb_build_object(
    'migrations', (
      select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(m) order by m.version), '[]'::jsonb)
      from holdfast.migrations m),
    'functions', (select pg_catalog.to_jsonb(f) from holdfast.function_set f))
$$;

call holdfast.revoke_all_rights('public', 'holdfast_worker', 'anon', 'authenticated', 'service_role');
call holdfast.grant_execute('holdfast_worker', 'get_installed_schema', 'is_provided_by_extension');
call holdfast.grant_execute('service_role', 'get_installed_schema', 'is_provided_by_extension');
