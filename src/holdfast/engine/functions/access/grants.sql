-- Who may do what. Always applied before the other function files, and takes every right back from our roles.
-- So each file ends with the whole truth about its own functions, one line a role:
--
--     call holdfast.allow('holdfast_worker', 'claim_tasks', 'beat');
--     call holdfast.allow('authenticated', 'submit', 'get_job', 'cancel_job');
--     call holdfast.allow_read('authenticated', 'jobs', 'tasks');
--
-- A name covers all its overloads, a name that does not exist is an error, and a role that does not exist is
-- passed over (a server on which nobody may create roles). Write grants nowhere else: not in migrations.

-- Takes every right on what we own; what somebody else put into the schema is theirs to guard.
create or replace procedure holdfast.deny(variadic p_roles text[])
language plpgsql
set search_path = ''
as $$
declare
  v_roles text;
  v_kind text;
  v_objects text;
begin
  select pg_catalog.string_agg(pg_catalog.quote_ident(r), ', ') into v_roles
  from pg_catalog.unnest(p_roles) r
  where r = 'public' or exists (select from pg_catalog.pg_roles where rolname = r);
  if v_roles is null then
    return;
  end if;
  execute pg_catalog.format('revoke all on schema holdfast from %s', v_roles);
  for v_kind, v_objects in
    select kind, pg_catalog.string_agg(object, ', ')
    from (
      select 'routine' as kind, p.oid::pg_catalog.regprocedure::text as object
      from pg_catalog.pg_proc p
      where p.pronamespace = 'holdfast'::pg_catalog.regnamespace
        and pg_catalog.pg_get_userbyid(p.proowner) = current_user
      union all
      select case c.relkind when 'S' then 'sequence' else 'table' end, c.oid::pg_catalog.regclass::text
      from pg_catalog.pg_class c
      where c.relnamespace = 'holdfast'::pg_catalog.regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')
        and c.relacl is not null and pg_catalog.pg_get_userbyid(c.relowner) = current_user
    ) ours
    group by kind
  loop
    execute pg_catalog.format('revoke all on %s %s from %s', v_kind, v_objects, v_roles);
  end loop;
end
$$;

create or replace procedure holdfast.allow(p_role text, variadic p_functions text[])
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
      raise exception 'there is no function holdfast.% to allow to %', v_name, p_role using errcode = '42883';
    end if;
    continue when not exists (select from pg_catalog.pg_roles where rolname = p_role);
    execute pg_catalog.format('grant usage on schema holdfast to %I', p_role);
    execute pg_catalog.format('grant execute on routine %s to %I', v_signatures, p_role);
  end loop;
end
$$;

-- Reading a table is safe for anybody because its rows are guarded. A view guards them only when it runs with
-- the rights of its reader, which PostgreSQL 14 cannot do: there a view is granted to service_role alone.
create or replace procedure holdfast.allow_read(p_role text, variadic p_relations text[])
language plpgsql
set search_path = ''
as $$
declare
  v_name text;
  v_kind "char";
begin
  foreach v_name in array p_relations loop
    select c.relkind into v_kind
    from pg_catalog.pg_class c
    where c.relnamespace = 'holdfast'::pg_catalog.regnamespace and c.relname = v_name;
    if v_kind is null then
      raise exception 'there is no table holdfast.% to allow to %', v_name, p_role using errcode = '42P01';
    end if;
    continue when not exists (select from pg_catalog.pg_roles where rolname = p_role);
    continue when v_kind = 'v' and p_role <> 'service_role'
      and pg_catalog.current_setting('server_version_num')::integer < 150000;
    execute pg_catalog.format('grant usage on schema holdfast to %I', p_role);
    execute pg_catalog.format('grant select on holdfast.%I to %I', v_name, p_role);
  end loop;
end
$$;

-- Make views run with the rights of whoever reads them: `call holdfast.guard_views('all_tasks')` after
-- `create or replace view`, since the option in the statement itself is an error on PostgreSQL 14.
create or replace procedure holdfast.guard_views(variadic p_views text[])
language plpgsql
set search_path = ''
as $$
declare
  v_name text;
begin
  foreach v_name in array p_views loop
    continue when pg_catalog.current_setting('server_version_num')::integer < 150000;
    execute pg_catalog.format('alter view holdfast.%I set (security_invoker = true)', v_name);
  end loop;
end
$$;

-- Whether somebody else provides a capability: the real extension is installed, or its schema was there before
-- us with something in it. Files marked `unless-extension` are then left out.
create or replace function holdfast.provided(p_extension text) returns boolean
language sql stable
set search_path = ''
as $$
  select exists (select from pg_catalog.pg_extension where extname = p_extension)
    or exists (
      select from pg_catalog.pg_namespace n
      where n.nspname = p_extension
        and pg_catalog.obj_description(n.oid, 'pg_namespace') is distinct from 'message queues by Holdfast')
$$;

-- What install.py, workers and doctor ask: every applied migration, and the installed set of functions.
create or replace function holdfast.installed() returns jsonb
language sql stable security definer
set search_path = ''
as $$
  select pg_catalog.jsonb_build_object(
    'migrations', (
      select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(m) order by m.version), '[]'::jsonb)
      from holdfast.migrations m),
    'functions', (select pg_catalog.to_jsonb(f) from holdfast.function_set f))
$$;

call holdfast.deny('public', 'holdfast_worker', 'anon', 'authenticated', 'service_role');
call holdfast.allow('holdfast_worker', 'installed', 'provided');
call holdfast.allow('authenticated', 'installed', 'provided');
call holdfast.allow('service_role', 'installed', 'provided');
