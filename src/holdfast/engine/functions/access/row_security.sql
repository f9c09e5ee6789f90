-- Row level security for users: they read their own jobs, tasks, history, attempts, events, batches and log lines.
-- A policy is created once, when the role exists. An existing policy is not replaced, because that locks the table.

do $$
declare
  v_table text;
begin
  if not exists (select from pg_roles where rolname = 'authenticated') then
    return;
  end if;
  foreach v_table in array '{jobs,tasks,history,attempts,events,batches,logs}'::text[] loop
    if not exists (select from pg_policies where schemaname = 'holdfast' and tablename = v_table
      and policyname = 'own_rows') then
      execute format('create policy own_rows on holdfast.%I for select to authenticated
        using (owner = (select holdfast.get_user_id_from_jwt_claims()))', v_table);
    end if;
  end loop;
end $$;

-- Users read their own files that can be downloaded.
do $$
begin
  if exists (select from pg_roles where rolname = 'authenticated')
    and not exists (select from pg_policies where schemaname = 'holdfast' and tablename = 'artifacts'
      and policyname = 'own_rows') then
    create policy own_rows on holdfast.artifacts for select to authenticated using (
      owner = (select holdfast.get_user_id_from_jwt_claims()) and status = 'visible'
        and (expires_at is null or expires_at > holdfast.now()));
  end if;
end $$;

call holdfast.grant_select('authenticated', 'artifacts');
call holdfast.grant_select('authenticated', 'jobs', 'tasks', 'history', 'attempts', 'events', 'batches', 'logs');
