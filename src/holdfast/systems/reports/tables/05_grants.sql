-- Who may call and read what.
do $$
declare
  v_role text;
  v_function text;
begin
  foreach v_function in array array['visible_report_user()', 'count_complete_documents(uuid)', 'report_id_time(uuid)',
    'resolve_report_arguments(jsonb, jsonb)', 'get_report_claimant()', 'find_report_lease(uuid, text, text)',
    'claim_tasks(text, integer, text[])', 'heartbeat_task(uuid, text, text)', 'complete_task(uuid, text, jsonb, text)',
    'fail_task(uuid, text, text, text)', 'reclaim_stale_tasks()', 'list_report_tasks()', 'measure_report(uuid)',
    'convert_report_status(text)', 'create_upload_link(uuid, text, text, text, text, text)', 'delete_old_reports(timestamptz, integer)'] loop
    execute format('revoke all on function {}.%s from public', v_function);
    foreach v_role in array array['service_role', 'holdfast_worker'] loop
      continue when not exists (select from pg_catalog.pg_roles where rolname = v_role);
      execute format('grant usage on schema %s to %I', rtrim('{}.', '.'), v_role);
      execute format('grant execute on function {}.%s to %I', v_function, v_role);
    end loop;
  end loop;
  -- The API receives uploads as a service.
  revoke all on function {}.record_report(holdfast.jobs), {}.record_report_change(), {}.insert_job_artifact(),
    {}.refuse_view_change(), {}.find_upload(text), {}.record_upload(text, bigint, text) from public;
  revoke all on {}.jobs, {}.job_tasks, {}.job_artifacts, {}.reports from public;
  alter table {}.reports enable row level security;
  alter table {}.reports force row level security;
  alter table {}.report_uploads enable row level security;
  alter table {}.report_uploads force row level security;
  revoke all on {}.report_uploads from public;
  drop policy if exists owner_all on {}.report_uploads;
  execute format('create policy owner_all on {}.report_uploads to %I using (true) with check (true)', (
    select pg_catalog.pg_get_userbyid(c.relowner) from pg_catalog.pg_class c
    where c.oid = '{}.report_uploads'::regclass));
  drop policy if exists owner_all on {}.reports;
  execute format('create policy owner_all on {}.reports to %I using (true) with check (true)', (
    select pg_catalog.pg_get_userbyid(c.relowner) from pg_catalog.pg_class c where c.oid = '{}.reports'::regclass));
  -- The views run with the rights of their reader, so that row security decides. PostgreSQL 14 cannot do that: there,
  -- the conditions in the views decide.
  if pg_catalog.current_setting('server_version_num')::integer >= 150000 then
    alter view {}.jobs set (security_invoker = true);
    alter view {}.job_tasks set (security_invoker = true);
    alter view {}.job_artifacts set (security_invoker = true);
  end if;
  drop policy if exists service_role on {}.reports;
  if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
    grant select on {}.reports to service_role;
    -- Triggers register files, and refuse every other change with a hint.
    grant select, insert, update, delete on {}.jobs, {}.job_tasks, {}.job_artifacts to service_role;
    grant execute on function {}.find_upload(text), {}.record_upload(text, bigint, text) to service_role;
    create policy service_role on {}.reports for select to service_role using (true);
  end if;
  if exists (select from pg_catalog.pg_roles where rolname = 'holdfast_worker') then
    grant select, insert, update, delete on {}.job_tasks to holdfast_worker;
    grant insert on {}.job_artifacts to holdfast_worker;
  end if;
  drop policy if exists authenticated on {}.reports;
  if exists (select from pg_catalog.pg_roles where rolname = 'authenticated') then
    execute format('grant usage on schema %s to authenticated', rtrim('{}.', '.'));
    grant select on {}.jobs, {}.job_artifacts, {}.reports to authenticated;
    create policy authenticated on {}.reports for select to authenticated
      using (user_id = (select holdfast.get_user_id_from_jwt_claims()));
    grant execute on function {}.visible_report_user(), {}.count_complete_documents(uuid), {}.report_id_time(uuid)
      to authenticated;
  end if;
end $$;

-- What the erasure of a user deletes.
call holdfast.register_owner_table('{}.reports');
