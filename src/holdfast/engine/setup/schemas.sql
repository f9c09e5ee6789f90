-- Create the schemas, and act as their owner for the rest of the transaction, so that every object belongs to one
-- role that is not a superuser.
do $schemas$
declare
  v_owner text;
  v_schema text;
begin
  select pg_catalog.pg_get_userbyid(nspowner) into v_owner from pg_catalog.pg_namespace where nspname = 'holdfast';
  if v_owner is null then
    v_owner := current_user;
    if exists (select from pg_catalog.pg_roles where rolname = 'holdfast_owner')
      and pg_catalog.pg_has_role('holdfast_owner', case
        when pg_catalog.current_setting('server_version_num')::integer >= 160000 then 'SET' else 'MEMBER' end)
    then
      v_owner := 'holdfast_owner';
    end if;
    execute pg_catalog.format('create schema holdfast authorization %I', v_owner);
  end if;
  foreach v_schema in array array['pgmq', 'pgmq_public'] loop
    if not exists (select from pg_catalog.pg_namespace where nspname = v_schema) then
      execute pg_catalog.format('create schema %I authorization %I', v_schema, v_owner);
    end if;
  end loop;
  -- The schema pgmq belongs to another installation: our functions call its functions as our owner.
  if exists (select from pg_catalog.pg_namespace
    where nspname = 'pgmq' and pg_catalog.pg_get_userbyid(nspowner) <> v_owner)
  then
    begin
      execute pg_catalog.format('grant usage, create on schema pgmq to %I', v_owner);
      execute pg_catalog.format('grant all on all tables in schema pgmq to %I', v_owner);
      execute pg_catalog.format('grant all on all sequences in schema pgmq to %I', v_owner);
    exception when insufficient_privilege then
      raise notice 'holdfast: % may not grant rights on schema pgmq to %', current_user, v_owner;
    end;
  end if;
  perform pg_catalog.set_config('role', v_owner, true);
  perform pg_catalog.set_config('search_path', '', true);
  -- The comment marks the schema as ours. Another pgmq installation may belong to the same role.
  if exists (select from pg_catalog.pg_namespace n
    where nspname = 'pgmq' and pg_catalog.pg_get_userbyid(nspowner) = v_owner
      and not exists (select from pg_catalog.pg_proc where pronamespace = n.oid)
      and not exists (select from pg_catalog.pg_class where relnamespace = n.oid))
  then
    comment on schema pgmq is 'message queues by Holdfast';
  end if;
  perform pg_catalog.set_config('check_function_bodies', 'off', true);
end
$schemas$;
