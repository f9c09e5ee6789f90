-- Files of external workers: a link to upload a file without a key, and INSERT into `job_artifacts`, as in the sources.

-- One row per upload link. The link has a secret; its hash is kept.
create table if not exists {}.report_uploads (
  secret_hash bytea primary key,
  artifact_id uuid not null,
  task_id uuid not null,
  attempt integer not null,
  nonce bigint not null,
  object_key text not null,
  name text not null,
  content_type text not null,
  storage_path text not null,
  max_bytes bigint,
  expires_at timestamptz not null,
  size bigint,
  sha256 text
);
create index if not exists report_uploads_task on {}.report_uploads (task_id, storage_path);
create index if not exists report_uploads_expiry on {}.report_uploads (expires_at);

-- Return a link to which the holder of a task can send one file with PUT, within an hour. Send the file to the address
-- of the API followed by `upload_url`, then insert `storage_path` into job_artifacts.
create or replace function {}.create_upload_link(p_task_id uuid, p_worker_id text, p_name text, p_artifact_type text,
  p_content_type text default null, p_fence text default null)
returns table (upload_url text, storage_path text, artifact_id uuid, expires_at timestamptz)
language plpgsql security definer set search_path = '' as $$
declare
  v_lease record := {}.find_report_lease(p_task_id, p_worker_id, p_fence);
  v_secret text := replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
  v_kind text := case p_artifact_type when 'audio_mp3' then 'audio' else p_artifact_type end;
  v_type text := coalesce(p_content_type, case v_kind when 'audio' then 'audio/mpeg' when 'pdf' then 'application/pdf'
    when 'json' then 'application/json' else 'application/octet-stream' end);
  v_staged jsonb := holdfast.stage_artifact(p_task_id, v_lease.attempt, v_lease.nonce,
    jsonb_build_object('name', p_name, 'kind', v_kind, 'content_type', v_type));
  v_job_id uuid := (select t.job_id from holdfast.tasks t where t.id = p_task_id);
begin
  upload_url := '/api/report-uploads/' || v_secret;
  storage_path := concat_ws('/', v_staged ->> 'owner', v_job_id, v_kind, p_name);
  artifact_id := (v_staged ->> 'id')::uuid;
  expires_at := holdfast.now() + interval '1 hour';
  delete from {}.report_uploads u where u.secret_hash in (
    select o.secret_hash from {}.report_uploads o where o.expires_at < holdfast.now() limit 100 for update skip locked);
  insert into {}.report_uploads (secret_hash, artifact_id, task_id, attempt, nonce, object_key, name, content_type,
    storage_path, max_bytes, expires_at)
  values (sha256(v_secret::bytea), create_upload_link.artifact_id, p_task_id, v_lease.attempt, v_lease.nonce,
    v_staged ->> 'key', p_name, v_type, create_upload_link.storage_path, (v_staged ->> 'max_bytes')::bigint,
    create_upload_link.expires_at);
  return next;
end $$;

-- Return where the bytes of an upload link go, or no row if the link is not valid, was used or has expired.
create or replace function {}.find_upload(p_secret text)
returns table (object_key text, name text, content_type text, max_bytes bigint)
language plpgsql stable security definer set search_path = '' as $$
begin
  return query
  select u.object_key, u.name, u.content_type, u.max_bytes from {}.report_uploads u
  join holdfast.tasks t on t.id = u.task_id and t.attempt = u.attempt and t.nonce = u.nonce and t.status = 'running'
  where u.secret_hash = sha256(p_secret::bytea) and u.expires_at > holdfast.now() and u.size is null;
end $$;

-- Record that the bytes of an upload link have arrived. Return false if another upload was faster.
create or replace function {}.record_upload(p_secret text, p_size bigint, p_sha256 text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update {}.report_uploads u set size = p_size, sha256 = p_sha256
  where u.secret_hash = sha256(p_secret::bytea) and u.size is null;
  return found;
end $$;

-- INSERT into job_artifacts registers the uploaded file of a task that the caller holds. It is visible once the task is
-- complete. `public_url` is accepted and not stored: links are made on request.
create or replace function {}.insert_job_artifact() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  v_upload {}.report_uploads;
begin
  select u.* into v_upload from {}.report_uploads u
  join {}.report_claims c on c.task_id = u.task_id and c.nonce = u.nonce and c.claimed_by = {}.get_report_claimant()
  join holdfast.tasks t on t.id = u.task_id and t.attempt = u.attempt and t.nonce = u.nonce and t.status = 'running'
  where u.task_id = new.task_id and u.storage_path = new.storage_path and (new.job_id is null or t.job_id = new.job_id)
  order by u.size is null, u.expires_at desc limit 1;
  if not found then
    raise exception using errcode = 'HF001',
      message = format('You hold no task %s with an upload link for %s.', new.task_id, new.storage_path),
      hint = 'Claim the task with claim_tasks and make the link with create_upload_link.';
  end if;
  if v_upload.size is null or v_upload.size is distinct from coalesce(new.file_size_bytes, v_upload.size) then
    raise exception using errcode = 'HF004', column = 'file_size_bytes',
      message = case when v_upload.size is null then format('The file %s was not uploaded yet.', new.storage_path)
        else format('The file %s has %s bytes, not %s.', new.storage_path, v_upload.size, new.file_size_bytes) end,
      hint = 'Send the file with PUT to the upload_url of create_upload_link first.';
  end if;
  perform holdfast.record_artifact_upload(v_upload.artifact_id, v_upload.attempt, v_upload.nonce, v_upload.size,
    v_upload.sha256, case when new.duration_seconds is not null
      then jsonb_build_object('duration', new.duration_seconds) end);
  new.id := v_upload.artifact_id;
  new.file_size_bytes := v_upload.size;
  return new;
end $$;

-- Refuse all other changes of the views. The argument says what to do instead.
create or replace function {}.refuse_view_change() returns trigger
language plpgsql set search_path = '' as $$
begin
  raise exception using errcode = 'HF004',
    message = format('%s is a view: it shows what the engine knows and cannot be changed.', tg_table_name),
    hint = tg_argv[0];
end $$;

drop trigger if exists insert_job_artifact on {}.job_artifacts;
create trigger insert_job_artifact instead of insert on {}.job_artifacts
  for each row execute function {}.insert_job_artifact();
drop trigger if exists refuse_change on {}.job_artifacts;
create trigger refuse_change instead of update or delete on {}.job_artifacts for each row
  execute function {}.refuse_view_change('Delete a file with holdfast.delete_artifact or client.files.delete.');
drop trigger if exists refuse_change on {}.jobs;
create trigger refuse_change instead of insert or update or delete on {}.jobs for each row
  execute function {}.refuse_view_change('Start a report with POST /api/jobs/start, cancel it with DELETE /api/jobs/{id}.');
drop trigger if exists refuse_change on {}.job_tasks;
create trigger refuse_change instead of insert or update or delete on {}.job_tasks for each row
  execute function {}.refuse_view_change('Report on a task with heartbeat_task, complete_task or fail_task.');
