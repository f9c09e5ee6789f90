-- Tables of the export system: documents, export requests, batches, history and usage. `{}` is the schema.
-- Running this script again changes nothing.

create table if not exists {}.documents (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null,
  title text not null check (char_length(title) between 1 and 500),
  version integer not null default 1,
  data jsonb not null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create index if not exists documents_user on {}.documents (user_id, updated_at desc);

create or replace function {}.documents_next_version() returns trigger
language plpgsql set search_path = '' as $$
begin
  if (new.data, new.title) is distinct from (old.data, old.title) then
    new.version := old.version + 1;
    new.updated_at := now();
  end if;
  return new;
end $$;
drop trigger if exists documents_next_version on {}.documents;
create trigger documents_next_version before update on {}.documents
  for each row execute function {}.documents_next_version();

-- One row per requested export. Its id is the id of the job; the job has the status.
create table if not exists {}.export_requests (
  id uuid primary key,
  user_id uuid not null,
  document_id uuid not null,
  format text not null default 'pdf' check (format in ('pdf')),
  template_slug text not null,
  options jsonb not null,
  file_size bigint,
  page_count integer,
  created_at timestamptz not null default holdfast.now()
);
-- How the export ended. The engine forgets a job before its file expires; then these columns answer.
alter table {}.export_requests
  add column if not exists final_status text check (final_status in ('completed', 'failed', 'cancelled')),
  add column if not exists final_progress integer,
  add column if not exists final_error text,
  add column if not exists attempts integer,
  add column if not exists started_at timestamptz,
  add column if not exists completed_at timestamptz;
create index if not exists export_requests_user on {}.export_requests (user_id, created_at desc);

create table if not exists {}.export_batches (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null,
  created_at timestamptz not null default holdfast.now()
);
create index if not exists export_batches_user on {}.export_batches (user_id);
create table if not exists {}.export_batch_items (
  batch_id uuid not null references {}.export_batches on delete cascade,
  position integer not null,
  job_id uuid not null,
  document_id uuid not null,
  title text not null,
  user_id uuid not null,
  primary key (batch_id, position)
);
create index if not exists export_batch_items_user on {}.export_batch_items (user_id);

-- One row per exported file. The row stays until the file expires, even if the document is deleted.
create table if not exists {}.export_history (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null,
  document_id uuid references {}.documents on delete set null,
  document_version integer not null,
  format text not null,
  template_slug text not null,
  file_name text not null,
  file_path text not null,
  file_size bigint not null,
  download_count integer not null default 0,
  artifact_id uuid,
  expires_at timestamptz not null,
  created_at timestamptz not null default holdfast.now()
);
create index if not exists export_history_user on {}.export_history (user_id, created_at desc);
create index if not exists export_history_expires on {}.export_history (expires_at);
create index if not exists export_history_document on {}.export_history (document_id);

-- The number of exports that a user has requested on a day.
create table if not exists {}.export_usage (
  user_id uuid not null,
  day date not null,
  operations integer not null,
  primary key (user_id, day)
);

-- Refuse a row whose job or file belongs to another user. The API reads jobs and files as a service, so a row with a
-- foreign id would open them. The argument of the trigger is the column with the id of the job.
create or replace function {}.check_export_job() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  v_job uuid := to_jsonb(new) ->> tg_argv[0];
begin
  if not exists (select from holdfast.all_tasks t
    where t.id = v_job and t.single and t.type = 'export_pdf' and t.owner = new.user_id::text) then
    raise exception using errcode = 'HF002', message = format('Export job %s does not exist.', v_job),
      column = tg_argv[0], hint = 'Start an export with POST /api/v1/export/pdf.';
  end if;
  return new;
end $$;

create or replace function {}.check_exported_file() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if new.artifact_id is not null and not exists (select from holdfast.artifacts f
    where f.id = new.artifact_id and f.owner = new.user_id::text) then
    raise exception using errcode = 'HF002', message = format('File %s does not exist.', new.artifact_id),
      column = 'artifact_id';
  end if;
  return new;
end $$;

-- Delete the file together with its row, whoever deletes the row. Otherwise the user would have free storage.
create or replace function {}.delete_exported_file() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if holdfast.get_artifact(old.artifact_id) ->> 'owner' = old.user_id::text then
    perform holdfast.delete_artifact(old.artifact_id);
  end if;
  return null;
end $$;

-- Record how an export ended that failed or was cancelled; the task itself records success. A problem here must not stop
-- the engine, for example after somebody dropped the table.
create or replace function {}.record_export_end() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  update {}.export_requests r set final_status = new.status, final_progress = coalesce(round(new.percent)::integer, 0),
    final_error = case when new.error ->> 'type' in ('Reject', 'Cancelled') then new.error ->> 'message'
      when new.error <> 'null' then 'Something went wrong while working on this.' end,
    attempts = new.attempt, started_at = new.started_at, completed_at = new.finished_at
  where r.id = new.id;
  return null;
exception when undefined_table or undefined_column or insufficient_privilege then
  raise warning 'The end of export % was not recorded: %', new.id, sqlerrm;
  return null;
end $$;
-- The trigger carries the name of the schema, because the system can be installed in several.
do $$
begin
  execute format('drop trigger if exists %1$I on holdfast.history; create trigger %1$I after insert on holdfast.history
    for each row when (new.job_id is null and new.owner is not null and new.status in (''failed'', ''cancelled''))
    execute function {}.record_export_end()', 'record_export_end_' || trim(both '"' from rtrim('{}.', '.')));
end $$;

drop trigger if exists check_export_job on {}.export_requests;
create trigger check_export_job before insert or update of id, user_id on {}.export_requests
  for each row execute function {}.check_export_job('id');
drop trigger if exists check_export_job on {}.export_batch_items;
create trigger check_export_job before insert or update of job_id, user_id on {}.export_batch_items
  for each row execute function {}.check_export_job('job_id');
drop trigger if exists check_exported_file on {}.export_history;
create trigger check_exported_file before insert or update of artifact_id, user_id on {}.export_history
  for each row execute function {}.check_exported_file();
drop trigger if exists delete_exported_file on {}.export_history;
create trigger delete_exported_file after delete on {}.export_history
  for each row when (old.artifact_id is not null) execute function {}.delete_exported_file();

-- Services and workers read and change all rows. Users read their own rows, and change only what the contract says:
-- they insert, change and delete their documents, and insert and delete lines of their history, but without the columns
-- that name a job or a file. Requests, batches and usage count against limits, so only the API writes them.
call holdfast.protect_system_table('{}.documents', 'all');
call holdfast.protect_system_table('{}.export_requests');
call holdfast.protect_system_table('{}.export_batches');
call holdfast.protect_system_table('{}.export_batch_items');
call holdfast.protect_system_table('{}.export_history');
call holdfast.protect_system_table('{}.export_usage');
do $$
declare
  v_own constant text := 'user_id = (select holdfast.get_user_uuid_from_jwt_claims())';
begin
  drop policy if exists delete_own_history on {}.export_history;
  drop policy if exists insert_own_history on {}.export_history;
  if exists (select from pg_catalog.pg_roles where rolname = 'authenticated') then
    grant delete on {}.export_history to authenticated;
    execute format('create policy delete_own_history on {}.export_history for delete to authenticated using (%s)',
      v_own);
    grant insert (user_id, document_id, document_version, format, template_slug, file_name, file_path, file_size,
      expires_at) on {}.export_history to authenticated;
    execute format('create policy insert_own_history on {}.export_history for insert to authenticated
      with check (%s and file_size >= 0
        and (document_id is null or exists (select from {}.documents d where d.id = document_id)))', v_own);
  end if;
end $$;

-- The worker that runs an export, or null if it is not running. Users see a number instead of the worker's name,
-- because the name contains the name of the machine.
create or replace function {}.export_worker_name(p_id uuid) returns text
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  return (
    select case when v_user is null then w.name else 'worker-' || w.id end
    from holdfast.tasks t join holdfast.workers w on w.id = t.worker_id
    where t.id = p_id and t.status = 'running' and (v_user is null or t.owner = v_user));
end $$;
revoke all on function {}.export_worker_name(uuid), {}.check_export_job(), {}.check_exported_file(),
  {}.delete_exported_file(), {}.record_export_end(), {}.documents_next_version() from public;
-- New partitions of the history get the trigger, and whoever creates them must be allowed to call its function.
do $$
begin
  execute format('grant execute on function {}.record_export_end() to %I', (select pg_catalog.pg_get_userbyid(c.relowner)
    from pg_catalog.pg_class c where c.oid = 'holdfast.history'::regclass));
end $$;

-- All exports with the status of their jobs. On PostgreSQL 14, which has no views that run with the rights of their
-- reader, only services may read this view.
create or replace view {}.export_jobs as
  select r.id, r.user_id, r.document_id, r.format,
    r.options || jsonb_build_object('templateSlug', r.template_slug) as options,
    case when h.id is not null then 'completed' when j.job is null then coalesce(r.final_status, 'failed')
      else case j.job ->> 'status' when 'queued' then 'pending' when 'running' then 'processing'
        when 'succeeded' then 'completed' when 'cancelled' then 'cancelled' else 'failed' end end as status,
    case when h.id is not null or j.job ->> 'status' = 'succeeded' then 100
      when j.job is null then coalesce(r.final_progress, 0)
      else coalesce(round((j.job #>> '{progress,percent}')::numeric)::integer, 0) end as progress,
    coalesce((j.job #>> '{tasks,0,attempt}')::integer, r.attempts, 0) as attempts,
    5 as max_attempts,
    case when j.job ->> 'status' = 'queued' then (j.job #>> '{tasks,0,due_at}')::timestamptz end as run_after,
    case when h.id is not null then '/api/v1/export/download/' || h.id end as result_url,
    r.file_size, r.page_count,
    case when j.job is null and h.id is null then r.final_error
      when j.job #>> '{error,type}' in ('Reject', 'Cancelled') then j.job #>> '{error,message}'
      when j.job -> 'error' <> 'null' then 'Something went wrong while working on this.' end as error_message,
    case when j.job ->> 'status' = 'running' then {}.export_worker_name(r.id) end as locked_by,
    coalesce((j.job ->> 'started_at')::timestamptz, r.started_at) as started_at,
    coalesce((j.job ->> 'finished_at')::timestamptz, h.created_at, r.completed_at) as completed_at,
    r.created_at
  from {}.export_requests r
  cross join lateral (select holdfast.get_job(r.id) as job) as j
  left join {}.export_history h on h.id = r.id and h.user_id = r.user_id
  where j.job is null or j.job ->> 'owner' = r.user_id::text;

do $$
declare
  v_has_security_invoker constant boolean :=
    pg_catalog.current_setting('server_version_num')::integer >= 150000;
  v_role text;
begin
  if v_has_security_invoker then
    alter view {}.export_jobs set (security_invoker = true);
  end if;
  revoke all on {}.export_jobs from public;
  foreach v_role in array array['service_role', 'holdfast_worker', 'authenticated'] loop
    if exists (select from pg_catalog.pg_roles where rolname = v_role)
      and (v_has_security_invoker or v_role <> 'authenticated') then
      execute format('grant select on {}.export_jobs to %I', v_role);
      execute format('grant execute on function {}.export_worker_name(uuid) to %I', v_role);
    end if;
  end loop;
end $$;

-- Claim the next export for an external worker, of one user or of all. The columns are those of the view; `attempt` and
-- `nonce` are the lease, with which holdfast.heartbeat_task, complete_task and fail_task report on it.
create or replace function {}.fetch_next_export_job(p_user_id uuid default null)
returns table (id uuid, user_id uuid, document_id uuid, format text, options jsonb, status text, progress integer,
  attempts integer, max_attempts integer, run_after timestamptz, result_url text, file_size bigint,
  page_count integer, error_message text, locked_by text, started_at timestamptz, completed_at timestamptz,
  created_at timestamptz, attempt integer, nonce bigint)
language plpgsql security definer set search_path = '' as $$
declare
  v_task record;
  v_chosen record;
begin
  if holdfast.get_end_user_id() is not null then
    return;
  end if;
  for v_task in
    select c.id, c.attempt, c.nonce, r.user_id as owner_id
    from holdfast.claim_tasks('export-fetcher-' || session_user, case when p_user_id is null then 1 else 50 end,
      '{export_pdf}', '{exports}') as c
    left join {}.export_requests r on r.id = c.id
  loop
    if v_chosen is null and (p_user_id is null or v_task.owner_id = p_user_id) then
      v_chosen := v_task;
    else
      -- Exports of other users go back at once, without a charged attempt.
      perform holdfast.release_task(v_task.id, v_task.attempt, v_task.nonce);
    end if;
  end loop;
  if v_chosen is null then
    return;
  end if;
  return query
  select e.id, e.user_id, e.document_id, e.format, e.options, e.status, e.progress, e.attempts, e.max_attempts,
    e.run_after, e.result_url, e.file_size, e.page_count, e.error_message, e.locked_by, e.started_at, e.completed_at,
    e.created_at, v_chosen.attempt, v_chosen.nonce
  from {}.export_jobs e where e.id = v_chosen.id;
end $$;
revoke all on function {}.fetch_next_export_job(uuid) from public;

create or replace function {}.refuse_export_change() returns trigger
language plpgsql set search_path = '' as $$
begin
  raise exception using errcode = 'HF004',
    message = 'export_jobs is a view: it shows what the engine knows and cannot be changed.',
    hint = 'Start an export with POST /api/v1/export/pdf, cancel it with DELETE /api/v1/export/job/{id}; report on a '
      || 'claimed one with holdfast.complete_task or holdfast.fail_task.';
end $$;
revoke all on function {}.refuse_export_change() from public;
drop trigger if exists refuse_change on {}.export_jobs;
create trigger refuse_change instead of insert or update or delete on {}.export_jobs
  for each row execute function {}.refuse_export_change();
do $$
declare
  v_role text;
begin
  foreach v_role in array array['service_role', 'holdfast_worker'] loop
    if exists (select from pg_catalog.pg_roles where rolname = v_role) then
      execute format('grant execute on function {}.fetch_next_export_job(uuid) to %I', v_role);
      execute format('grant insert, update, delete on {}.export_jobs to %I', v_role);
    end if;
  end loop;
end $$;

-- What the erasure of a user deletes, the rows that refer to others first.
call holdfast.register_owner_table('{}.export_batch_items');
call holdfast.register_owner_table('{}.export_batches');
call holdfast.register_owner_table('{}.export_history');
call holdfast.register_owner_table('{}.export_requests');
call holdfast.register_owner_table('{}.export_usage');
call holdfast.register_owner_table('{}.documents');
