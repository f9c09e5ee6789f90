-- Users read their own rows and nothing else: jobs, tasks, history, attempts, events, batches and log lines they own.
-- Made once, when the role is there: a policy that exists is left alone, because making it locks the table.

do $$
declare
  v_table text;
begin
  if not exists (select from pg_roles where rolname = 'authenticated') then
    return;
  end if;
  foreach v_table in array '{jobs,tasks,history,attempts,events,batches,logs}'::text[] loop
    if not exists (select from pg_policies where schemaname = 'holdfast' and tablename = v_table and policyname = 'own_rows') then
      execute format('create policy own_rows on holdfast.%I for select to authenticated
        using (owner = (select holdfast.current_user_id()))', v_table);
    end if;
  end loop;
end $$;

-- Of files only those that can be fetched.
do $$
begin
  if exists (select from pg_roles where rolname = 'authenticated')
    and not exists (select from pg_policies where schemaname = 'holdfast' and tablename = 'artifacts' and policyname = 'own_rows') then
    create policy own_rows on holdfast.artifacts for select to authenticated using (
      owner = (select holdfast.current_user_id()) and status = 'visible' and (expires_at is null or expires_at > holdfast.now()));
  end if;
end $$;

call holdfast.allow_read('authenticated', 'artifacts');
call holdfast.allow_read('authenticated', 'jobs', 'tasks', 'history', 'attempts', 'events', 'batches', 'logs');
