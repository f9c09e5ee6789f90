-- What services read in tables and views, for views that run with the rights of their reader, of systems and of your own.
-- Not the nonces of leases: whoever knows the nonce can report the outcome of a task that another worker holds.

do $$
declare
  v_table text;
begin
  if not exists (select from pg_roles where rolname = 'service_role') then
    return;
  end if;
  -- Created once, like the policies for users. A service_role that bypasses row security needs no policy.
  foreach v_table in array '{jobs,tasks,history,lanes,task_policies,workers,artifacts}'::text[] loop
    if not exists (select from pg_policies where schemaname = 'holdfast' and tablename = v_table
      and policyname = 'service_reads') then
      execute format('create policy service_reads on holdfast.%I for select to service_role using (true)', v_table);
    end if;
  end loop;
end $$;

call holdfast.grant_select_columns('service_role', 'jobs', 'id', 'type', 'owner', 'status', 'total', 'succeeded',
  'failed', 'cancelled', 'skipped', 'percent', 'phase', 'message', 'params', 'labels', 'event_seq', 'started_at',
  'finished_at', 'batch_id');
call holdfast.grant_select_columns('service_role', 'tasks', 'id', 'job_id', 'lane_id', 'name', 'status', 'attempt',
  'failures', 'crashes', 'losses', 'suspect', 'owner', 'worker_id', 'due_at', 'started_at', 'finished_at',
  'lease_until', 'start_before', 'percent', 'phase', 'message', 'weight', 'args', 'output', 'error', 'labels',
  'event_seq', 'batch_id');
call holdfast.grant_select_columns('service_role', 'history', 'id', 'job_id', 'policy_id', 'name', 'priority',
  'limit_key', 'status', 'attempt', 'failures', 'crashes', 'owner', 'worker_id', 'due_at', 'started_at',
  'finished_at', 'percent', 'phase', 'message', 'weight', 'args', 'output', 'error', 'labels', 'event_seq', 'batch_id');
call holdfast.grant_select_columns('service_role', 'all_tasks', 'id', 'job_id', 'single', 'name', 'queue', 'type',
  'priority', 'limit_key', 'status', 'attempt', 'failures', 'crashes', 'losses', 'suspect', 'owner', 'worker_id',
  'due_at', 'started_at', 'finished_at', 'lease_until', 'start_before', 'percent', 'phase', 'message', 'weight',
  'args', 'output', 'error', 'labels', 'event_seq', 'batch_id');
call holdfast.grant_select_columns('service_role', 'lanes', 'id', 'policy_id', 'queue', 'type', 'priority',
  'limit_key');
call holdfast.grant_select_columns('service_role', 'task_policies', 'id', 'queue', 'type', 'lease_s');
call holdfast.grant_select_columns('service_role', 'workers', 'id', 'name', 'queues', 'types', 'started_at', 'seen_at',
  'stopped_at', 'lost');
call holdfast.grant_select_columns('service_role', 'artifacts', 'id', 'job_id', 'task_id', 'batch_id', 'job_type',
  'owner', 'kind', 'name', 'content_type', 'size', 'sha256', 'meta', 'status', 'downloads', 'created_at', 'expires_at');
