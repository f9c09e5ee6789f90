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

-- The columns show what the HTTP API shows to users: no errors, arguments, log lines, workers, leases and object keys.
call holdfast.grant_select_columns('authenticated', 'jobs', 'id', 'type', 'owner', 'status', 'total', 'succeeded',
  'failed', 'cancelled', 'skipped', 'percent', 'phase', 'message', 'params', 'labels', 'event_seq', 'started_at',
  'finished_at', 'batch_id');
call holdfast.grant_select_columns('authenticated', 'tasks', 'id', 'job_id', 'name', 'owner', 'status', 'attempt',
  'failures', 'percent', 'phase', 'message', 'output', 'labels', 'event_seq', 'due_at', 'started_at', 'finished_at',
  'batch_id');
call holdfast.grant_select_columns('authenticated', 'history', 'id', 'job_id', 'name', 'owner', 'status', 'attempt',
  'failures', 'percent', 'phase', 'message', 'output', 'labels', 'event_seq', 'due_at', 'started_at', 'finished_at',
  'batch_id');
call holdfast.grant_select_columns('authenticated', 'attempts', 'task_id', 'job_id', 'attempt', 'outcome', 'owner',
  'started_at', 'ended_at');
call holdfast.grant_select_columns('authenticated', 'events', 'job_id', 'seq', 'at', 'owner', 'kind', 'body');
call holdfast.grant_select_columns('authenticated', 'batches', 'id', 'name', 'owner', 'total', 'ended', 'failed',
  'cancelled', 'closed_at', 'finished_at', 'callback_job', 'event_seq');
call holdfast.grant_select_columns('authenticated', 'artifacts', 'id', 'job_id', 'task_id', 'batch_id', 'job_type',
  'owner', 'kind', 'name', 'content_type', 'size', 'sha256', 'meta', 'status', 'downloads', 'created_at', 'expires_at');
