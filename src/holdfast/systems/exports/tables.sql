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
create index if not exists export_requests_user on {}.export_requests (user_id, created_at desc);

create table if not exists {}.export_batches (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null,
  created_at timestamptz not null default holdfast.now()
);
create table if not exists {}.export_batch_items (
  batch_id uuid not null references {}.export_batches on delete cascade,
  position integer not null,
  job_id uuid not null,
  document_id uuid not null,
  title text not null,
  user_id uuid not null,
  primary key (batch_id, position)
);

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

-- The number of exports that a user has requested on a day.
create table if not exists {}.export_usage (
  user_id uuid not null,
  day date not null,
  operations integer not null,
  primary key (user_id, day)
);

-- Users read and change their own rows. Services and workers read and change all rows.
do $$
declare
  v_table text;
  v_role text;
  v_privileges text;
begin
  foreach v_table in array array['documents', 'export_requests', 'export_batches', 'export_batch_items',
    'export_history', 'export_usage'] loop
    execute format('alter table {}.%I enable row level security', v_table);
    foreach v_role in array array['service_role', 'holdfast_worker', 'authenticated'] loop
      continue when not exists (select from pg_catalog.pg_roles where rolname = v_role);
      execute format('grant usage on schema %s to %I', rtrim('{}.', '.'), v_role);
      v_privileges := case when v_role <> 'authenticated' then 'select, insert, update, delete'
        when v_table = 'documents' then 'select, insert, update, delete'
        when v_table = 'export_usage' then 'select' else 'select, insert, delete' end;
      execute format('grant %s on {}.%I to %I', v_privileges, v_table, v_role);
      execute format('drop policy if exists %I on {}.%I', v_role, v_table);
      execute format('create policy %1$I on {}.%2$I to %1$I using (%3$s) with check (%3$s)', v_role, v_table,
        case when v_role = 'authenticated' then
          'user_id::text = (select holdfast.get_user_id_from_jwt_claims())' else 'true' end);
    end loop;
  end loop;
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
revoke all on function {}.export_worker_name(uuid) from public;

-- All exports with the status of their jobs. On PostgreSQL 14, which has no views that run with the rights of their
-- reader, only services may read this view.
create or replace view {}.export_jobs as
  select r.id, r.user_id, r.document_id, r.format,
    r.options || jsonb_build_object('templateSlug', r.template_slug) as options,
    case when h.id is not null then 'completed'
      else case j.job ->> 'status' when 'queued' then 'pending' when 'running' then 'processing'
        when 'succeeded' then 'completed' when 'cancelled' then 'cancelled' else 'failed' end end as status,
    case when h.id is not null then 100
      else coalesce(round((j.job #>> '{progress,percent}')::numeric)::integer, 0) end as progress,
    coalesce((j.job #>> '{tasks,0,attempt}')::integer, 0) as attempts,
    5 as max_attempts,
    case when j.job ->> 'status' = 'queued' then (j.job #>> '{tasks,0,due_at}')::timestamptz end as run_after,
    case when h.id is not null then '/api/v1/export/download/' || h.id end as result_url,
    r.file_size, r.page_count,
    case when j.job #>> '{error,type}' in ('Reject', 'Cancelled') then j.job #>> '{error,message}'
      when j.job -> 'error' <> 'null' then 'Something went wrong while working on this.' end as error_message,
    case when j.job ->> 'status' = 'running' then {}.export_worker_name(r.id) end as locked_by,
    (j.job ->> 'started_at')::timestamptz as started_at,
    coalesce((j.job ->> 'finished_at')::timestamptz, h.created_at) as completed_at,
    r.created_at
  from {}.export_requests r
  cross join lateral (select holdfast.get_job(r.id) as job) as j
  left join {}.export_history h on h.id = r.id;

do $$
declare
  v_has_security_invoker constant boolean :=
    pg_catalog.current_setting('server_version_num')::integer >= 150000;
  v_role text;
begin
  if v_has_security_invoker then
    alter view {}.export_jobs set (security_invoker = true);
  end if;
  foreach v_role in array array['service_role', 'holdfast_worker', 'authenticated'] loop
    if exists (select from pg_catalog.pg_roles where rolname = v_role)
      and (v_has_security_invoker or v_role <> 'authenticated') then
      execute format('grant select on {}.export_jobs to %I', v_role);
      execute format('grant execute on function {}.export_worker_name(uuid) to %I', v_role);
    end if;
  end loop;
end $$;
