-- Schema pgmq_public: the functions that Supabase's clients call over PostgREST. They run with the rights of the
-- caller: a role needs grants on the tables of the queue, and policies that show it the rows. The schema deliberately
-- has no functions to create, drop or purge queues. Wrappers that Supabase installed are not replaced.

do $$
declare
  v_role text;
begin
  if to_regnamespace('pgmq_public') is null then
    create schema pgmq_public;
  end if;
  if not exists (
    select from pg_catalog.pg_proc
     where pronamespace = 'pgmq_public'::regnamespace and not pg_has_role(current_user, proowner, 'usage')
  ) then
    execute $public$
      create or replace function pgmq_public.send(queue_name text, message jsonb, sleep_seconds integer default 0)
      returns setof bigint language plpgsql set search_path = ''
      as $f$ begin return query select * from pgmq.send(queue_name, message, sleep_seconds); end $f$;

      create or replace function pgmq_public.send_batch(
        queue_name text, messages jsonb[], sleep_seconds integer default 0
      ) returns setof bigint language plpgsql set search_path = ''
      as $f$ begin return query select * from pgmq.send_batch(queue_name, messages, sleep_seconds); end $f$;

      create or replace function pgmq_public.read(
        queue_name text, sleep_seconds integer default 30, n integer default 1
      )
      returns setof pgmq.message_record language plpgsql set search_path = ''
      as $f$ begin return query select * from pgmq.read(queue_name, sleep_seconds, n); end $f$;

      create or replace function pgmq_public.pop(queue_name text)
      returns setof pgmq.message_record language plpgsql set search_path = ''
      as $f$ begin return query select * from pgmq.pop(queue_name); end $f$;

      create or replace function pgmq_public.archive(queue_name text, message_id bigint)
      returns boolean language plpgsql set search_path = ''
      as $f$ begin return pgmq.archive(queue_name, message_id); end $f$;

      create or replace function pgmq_public.delete(queue_name text, message_id bigint)
      returns boolean language plpgsql set search_path = ''
      as $f$ begin return pgmq.delete(queue_name, message_id); end $f$;

      revoke all on all functions in schema pgmq_public from public;
    $public$;
    for v_role in
      select rolname from pg_catalog.pg_roles where rolname in ('postgres', 'anon', 'authenticated', 'service_role')
    loop
      execute format('grant usage on schema pgmq_public to %I', v_role);
      execute format('grant execute on all functions in schema pgmq_public to %I', v_role);
    end loop;
  end if;
end
$$;

-- The roles need usage on schema pgmq too. service_role and workers may use every queue, and later ones by default.
do $$
declare
  v_role text;
begin
  if not pg_has_role(current_user, (select nspowner from pg_catalog.pg_namespace where nspname = 'pgmq'), 'usage') then
    return;
  end if;
  for v_role in
    select rolname from pg_catalog.pg_roles
     where rolname in ('postgres', 'anon', 'authenticated', 'service_role', 'holdfast_worker')
  loop
    execute format('grant usage on schema pgmq to %I', v_role);
    if v_role in ('service_role', 'holdfast_worker') then
      execute format('grant all on all tables in schema pgmq to %I', v_role);
      execute format('alter default privileges in schema pgmq grant all on tables to %I', v_role);
    end if;
    if v_role in ('service_role', 'holdfast_worker') then
      execute format('grant usage, select, update on all sequences in schema pgmq to %I', v_role);
      execute format('alter default privileges in schema pgmq grant usage, select, update on sequences to %I', v_role);
    elsif v_role in ('anon', 'authenticated') and not holdfast.is_provided_by_extension('pgmq') then
      -- With setval, a user could make every send fail. Supabase grants that right, and so did earlier versions.
      execute format('revoke all on all sequences in schema pgmq from %I', v_role);
      execute format('alter default privileges in schema pgmq revoke all on sequences from %I', v_role);
    end if;
  end loop;
end
$$;
