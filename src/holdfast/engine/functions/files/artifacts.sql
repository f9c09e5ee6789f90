-- Artifacts: files in the object store. Table holdfast.artifacts describes the status of a row.
--
-- A worker calls `stage_artifact` before an upload and `record_artifact_upload` after it, both under its lease.
-- `publish_artifacts` makes recorded files visible in the transaction that accepts the success of the task. So a file
-- is visible if and only if its task succeeded. An object key is never used twice: it contains the row's id, the
-- attempt and a digest of the nonce.
--
-- A file saved within a step belongs to the step once the step is saved. It stays staged while the task is unfinished,
-- and the attempt that succeeds publishes it, whichever attempt saved it. A step whose files are gone runs again.
--
-- artifact_deletion.sql deletes files.

-- Return a part of an object key that every store and file system accepts. With p_add_digest, a text that had to be
-- changed gets a digest, so that two owners never share a part.
create or replace function holdfast.build_object_key_part(p_text text, p_add_digest boolean) returns text
language plpgsql immutable set search_path = '' as $$
declare
  v_safe text := regexp_replace(p_text, '[^A-Za-z0-9_.-]+', '_', 'g');
begin
  if length(v_safe) > 80 then
    v_safe := left(v_safe, 60) || right(v_safe, 20);
  end if;
  v_safe := regexp_replace(v_safe, '^\.+|\.+$', '_', 'g');
  if p_add_digest and v_safe <> p_text then
    v_safe := v_safe || '~' || left(encode(sha256(convert_to(p_text, 'UTF8')), 'hex'), 12);
  end if;
  return v_safe;
end $$;

-- Return a file name, or raise HF004 when it is not valid.
create or replace function holdfast.check_file_name(p_name text) returns text
language plpgsql immutable set search_path = '' as $$
begin
  if p_name is null or length(p_name) not between 1 and 255 or p_name in ('.', '..') or btrim(p_name) = ''
    or p_name ~ '[\x01-\x1f\x7f-\x9f/\\\u2028-\u202e\u2066-\u2069]' then
    perform holdfast.raise_error('HF004',
      format('A file name must be 1 to 255 characters without slashes, control characters or characters that change '
        || 'the direction of text, got %s.',
      coalesce(quote_literal(left(p_name, 60)), 'null')), 'name', 'Pass the file name without a folder.');
  end if;
  return p_name;
end $$;

-- Return the metadata of a file, or raise HF004 when it is not an object of at most 8 KiB.
create or replace function holdfast.check_artifact_meta(p_meta jsonb) returns jsonb
language plpgsql immutable set search_path = '' as $$
declare
  v_field text;
begin
  if p_meta is null or p_meta = 'null' then
    return '{}';
  end if;
  if jsonb_typeof(p_meta) <> 'object' or octet_length(p_meta::text) > 8192 then
    perform holdfast.raise_error('HF004', 'meta must be an object of at most 8 KiB.', 'meta');
  end if;
  foreach v_field in array '{duration,pages,width,height}'::text[] loop
    perform holdfast.parse_number_field(p_meta, v_field, 0, 1e12);
  end loop;
  return p_meta;
end $$;

-- Return a file as JSON for readers. `status` is visible or gone. An expired file is gone even before it is deleted.
create or replace function holdfast.build_artifact_json(p_row holdfast.artifacts, p_now timestamptz) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  return jsonb_build_object('id', p_row.id, 'job_id', p_row.job_id, 'task_id', p_row.task_id, 'owner', p_row.owner,
    'kind', p_row.kind, 'name', p_row.name, 'key', p_row.key, 'content_type', p_row.content_type, 'size', p_row.size,
    'sha256', p_row.sha256, 'meta', p_row.meta, 'downloads', p_row.downloads, 'created_at', p_row.created_at,
    'expires_at', p_row.expires_at,
    'status', case when p_row.status = 'visible' and p_row.expires_at <= p_now then 'gone'
      when p_row.status = 'deleting' then 'gone' else p_row.status end,
    'deletion_reason', case when p_row.status = 'visible' and p_row.expires_at <= p_now then 'expired'
      else p_row.deletion_reason end);
end $$;

-- Insert the row of a file that is about to be uploaded. p_file: name, kind, content_type, size (if known), ttl_s.
-- Return the row's id, the object key, and `max_bytes`, what is left of the owner's quota.
create or replace function holdfast.insert_artifact(
  p_template holdfast.artifacts, p_file jsonb, p_now timestamptz) returns jsonb
language plpgsql set search_path = '' as $$
declare
  v_new holdfast.artifacts := p_template;
  v_quota holdfast.quotas := holdfast.get_effective_quota(p_template.owner);
  v_usage holdfast.usage;
  v_size bigint := holdfast.parse_number_field(p_file, 'size', 0, 1e18);
begin
  v_new.id := holdfast.new_id();
  v_new.job_id := coalesce(p_template.job_id, v_new.id);
  v_new.name := holdfast.check_file_name(p_file ->> 'name');
  v_new.kind := holdfast.check_name(coalesce(p_file ->> 'kind', 'file'), 'kind');
  v_new.content_type := coalesce(p_file ->> 'content_type', 'application/octet-stream');
  if v_new.content_type !~ ('^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+'
      || '( *; *[A-Za-z0-9_.+-]+=("[^"\\[:cntrl:]]*"|[A-Za-z0-9_.+-]+))*$')
    or length(v_new.content_type) > 255 or length(v_new.kind) > 100 then
    perform holdfast.raise_error('HF004', format('Invalid content type %s or kind %s.',
      quote_literal(left(v_new.content_type, 60)),
      quote_literal(left(v_new.kind, 60))), 'type',
        'Write a content type such as image/png or text/plain; charset=utf-8.');
  end if;
  v_new.ttl_s := nullif(holdfast.parse_number_field(p_file, 'ttl_s', 0, 3155760000), 0);
  v_new.key := concat_ws('/', coalesce(holdfast.build_object_key_part(v_new.owner, true), '-'), v_new.job_id,
    holdfast.build_object_key_part(v_new.kind, true),
    replace(v_new.id::text, '-', '') || '-' || coalesce(v_new.attempt, 0) || '-'
      || left(encode(sha256(convert_to(coalesce(v_new.nonce::text, ''), 'UTF8')), 'hex'), 8),
        holdfast.build_object_key_part(v_new.name, false));
  v_new.meta := '{}';
  v_new.status := 'uploading';
  v_new.counted_in_usage := false;
  v_new.downloads := 0;
  v_new.created_at := p_now;
  v_new.touched_at := p_now;
  -- An early check that saves a useless upload; record_artifact_upload decides.
  if coalesce(v_quota.bytes, v_quota.files) is not null then
    perform holdfast.mark_expired_artifacts(v_new.owner, p_now, 1000);
    select * into v_usage from holdfast.usage u where u.owner = v_new.owner;
    if coalesce(v_usage.bytes, 0) + coalesce(v_size, 0) > v_quota.bytes then
      perform holdfast.raise_quota_error('bytes', coalesce(v_usage.bytes, 0), v_quota.bytes, v_size);
    elsif coalesce(v_usage.files, 0) + 1 > v_quota.files then
      perform holdfast.raise_quota_error('files', coalesce(v_usage.files, 0), v_quota.files, 1);
    end if;
  end if;
  insert into holdfast.artifacts select v_new.*;
  return jsonb_build_object('id', v_new.id, 'key', v_new.key, 'owner', v_new.owner,
    'max_bytes', v_quota.bytes - coalesce(v_usage.bytes, 0));
end $$;

-- Create the row of a file of a running task, before its upload. The file is invisible until the task succeeds.
create or replace function holdfast.stage_artifact(
  p_task_id uuid, p_attempt integer, p_nonce bigint, p_file jsonb) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_template holdfast.artifacts;
begin
  perform holdfast.assert_lease(p_task_id, p_attempt, p_nonce);
  update holdfast.tasks t set has_staged_files = true where t.id = p_task_id and t.has_staged_files is null;
  -- The caller holds the lease, so unpublished files of other attempts are lost. Their quota is released at once.
  update holdfast.artifacts f set status = 'deleting', deletion_reason = 'lost', touched_at = v_now
  where f.task_id = p_task_id and f.status in ('uploading', 'staged') and (f.attempt, f.nonce) <> (p_attempt, p_nonce)
    and f.step_name is null;
  if found then
    perform holdfast.subtract_deleted_artifacts_from_usage(array(
      select f.id from holdfast.artifacts f where f.task_id = p_task_id and f.status = 'deleting'), v_now);
  end if;
  select coalesce(t.job_id, t.id), t.id, t.attempt, t.nonce, coalesce(j.batch_id, t.batch_id), coalesce(j.type, l.type),
    coalesce(j.owner, t.owner)
  into v_template.job_id, v_template.task_id, v_template.attempt, v_template.nonce, v_template.batch_id,
    v_template.job_type, v_template.owner
  from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id left join holdfast.jobs j on j.id = t.job_id
  where t.id = p_task_id;
  return holdfast.insert_artifact(v_template, p_file, v_now);
end $$;

-- Create the row of a file that no task saves, before its upload. The file is visible once its upload is recorded.
-- p_file can also have job and owner.
create or replace function holdfast.stage_artifact_without_task(p_file jsonb) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_template holdfast.artifacts;
begin
  v_template.owner := nullif(p_file ->> 'owner', '');
  if p_file ->> 'job' is not null then
    select a.job_id, a.batch_id, case when a.single then a.type else j.type end, coalesce(j.owner, a.owner)
    into v_template.job_id, v_template.batch_id, v_template.job_type, v_template.owner
    from holdfast.all_tasks a left join holdfast.jobs j on j.id = a.job_id
    where a.job_id = (p_file ->> 'job')::uuid limit 1;
    if not found then
      perform holdfast.raise_error('HF002', format('Job %s does not exist.', p_file ->> 'job'), 'job');
    end if;
  end if;
  return holdfast.insert_artifact(v_template, p_file, holdfast.now());
end $$;

-- Record that an upload without a lease is still in progress, so that it does not count as abandoned. Return false
-- when the upload does not exist.
create or replace function holdfast.touch_artifact_upload(p_id uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update holdfast.artifacts f set touched_at = holdfast.now(
    ) where f.id = p_id and f.status = 'uploading' and f.task_id is null;
  return found;
end $$;

-- Record that an upload is complete and charge the owner's quota. A repeated call changes nothing.
create or replace function holdfast.record_artifact_upload(
  p_id uuid, p_attempt integer, p_nonce bigint, p_size bigint, p_sha256 text, p_meta jsonb default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
  v_row holdfast.artifacts;
begin
  select * into v_row from holdfast.artifacts f where f.id = p_id;
  if v_row.task_id is not null then
    if (v_row.attempt, v_row.nonce) is distinct from (p_attempt, p_nonce) then
      perform holdfast.raise_error('HF001', format('File %s belongs to another attempt.', p_id), 'id');
    end if;
    perform holdfast.assert_lease(v_row.task_id, p_attempt, p_nonce);
  end if;
  select * into v_row from holdfast.artifacts f where f.id = p_id for update;
  if not found or v_row.status not in ('uploading', 'staged', 'visible')
    or (v_row.status <> 'uploading' and (v_row.size, v_row.sha256) is distinct from (p_size, p_sha256)) then
    perform holdfast.raise_error('HF001', format('File %s is not being uploaded any more.', p_id), 'id',
      'Upload it again.');
  end if;
  if v_row.status = 'uploading' then
    update holdfast.artifacts f set size = p_size, sha256 = p_sha256, meta = holdfast.check_artifact_meta(p_meta),
      status = case when f.task_id is null then 'visible' else 'staged' end, touched_at = v_now,
        counted_in_usage = f.owner is not null,
      expires_at = case when f.task_id is null then
        v_now + coalesce(f.ttl_s, holdfast.choose_artifact_ttl(f.owner, f.job_type)) * interval '1 second' end
    where f.id = p_id returning * into v_row;
    if v_row.owner is not null then
      perform holdfast.charge_storage_quota(v_row.owner, p_size, 1, v_now);
    end if;
  end if;
  -- A staged file gets its end with the success of its attempt; this is the earliest.
  return holdfast.build_artifact_json(v_row, v_now) || jsonb_build_object('expires_at', coalesce(v_row.expires_at,
    v_now + coalesce(v_row.ttl_s, holdfast.choose_artifact_ttl(v_row.owner, v_row.job_type)) * interval '1 second'));
end $$;

-- Make the recorded files of attempts that succeeded visible. They replace files that earlier successes of the same
-- task, or the same attempt, saved under the same name. p_after: [{files: true, id, attempt, nonce}].
create or replace function holdfast.publish_artifacts(p_after jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
  as $$
declare
  v_published jsonb;
begin
  with ended as materialized (
    select a.id, a.attempt, a.nonce from jsonb_to_recordset(p_after) as a (id uuid, attempt integer, nonce bigint,
      files boolean)
    where a.files
  ), mine as materialized (
    select f.id, f.task_id, f.kind, f.name, row_number(
      ) over (partition by f.task_id, f.kind, f.name order by f.id desc) as place
    from ended e join holdfast.artifacts f on f.task_id = e.id
      and ((f.attempt = e.attempt and f.nonce = e.nonce) or f.step_name is not null)
    where f.status = 'staged'
  ), published as (
    update holdfast.artifacts f set status = 'visible', touched_at = p_now,
      expires_at = p_now + coalesce(f.ttl_s, holdfast.choose_artifact_ttl(f.owner, f.job_type)) * interval '1 second'
    from mine m where f.id = m.id and m.place = 1
    returning f.id, f.job_id, f.kind, f.name, f.content_type as type, f.size, f.expires_at
  ), replaced as (
    update holdfast.artifacts f set status = 'deleting', deletion_reason = 'replaced', touched_at = p_now
    from mine m
    where f.task_id = m.task_id and f.kind = m.kind and f.name = m.name
      and ((m.place = 1 and f.status = 'visible') or (m.place > 1 and f.id = m.id))
  )
  select jsonb_agg(to_jsonb(s) order by s.id) into v_published from published s;
  perform holdfast.emit_artifact_events(v_published, p_now);
end $$;

-- Emit one event for each file, after the event of the end that published it, so that a reader of the event can read
-- the file. The caller has locked the jobs. A job of one task without an owner that was never watched has no events.
create or replace function holdfast.emit_artifact_events(p_published jsonb, p_now timestamptz) returns void
language plpgsql set search_path = '' as $$
declare
  v_job record;
  v_seq bigint;
  v_owner text;
begin
  for v_job in
    select (s ->> 'job_id')::uuid as id, jsonb_agg(s - 'job_id') as files from jsonb_array_elements(p_published) as s
      group by 1 order by 1
  loop
    update holdfast.jobs j set event_seq = j.event_seq + jsonb_array_length(v_job.files) where j.id = v_job.id
    returning j.event_seq, j.owner into v_seq, v_owner;
    if not found then
      update holdfast.history h set event_seq = h.event_seq + jsonb_array_length(v_job.files) where h.id = v_job.id
        and h.event_seq is not null
      returning h.event_seq, h.owner into v_seq, v_owner;
    end if;
    if found then
      insert into holdfast.events (job_id, seq, at, keep_until, owner, kind, body)
      select v_job.id, v_seq - jsonb_array_length(v_job.files) + f.place, p_now, p_now + interval '7 days', v_owner,
        'artifact', f.file
      from jsonb_array_elements(v_job.files) with ordinality as f (file, place);
    end if;
  end loop;
end $$;

-- Return one file, visible or gone; null when it does not exist or belongs to somebody else. Users do not see the key
-- of the object.
create or replace function holdfast.get_artifact(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  return (
  select holdfast.build_artifact_json(f, holdfast.now()) - case when v_user is null then '' else 'key' end
  from holdfast.artifacts f
  where f.id = p_id and (v_user is null or f.owner = v_user) and f.status not in ('uploading', 'staged')
    and f.deletion_reason is distinct from 'lost');
end $$;

-- List visible files, oldest first. p_where: job, batch, owner, kind, name, before (newest first, older than this id).
-- p_after is the last id of the previous page.
create or replace function holdfast.list_artifacts(p_where jsonb, p_after uuid default null,
  p_limit integer default 100)
returns setof jsonb
language plpgsql stable security definer set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_now timestamptz := holdfast.now();
  v_job uuid := p_where ->> 'job';
  v_batch uuid := p_where ->> 'batch';
  v_owner text := coalesce(v_user, p_where ->> 'owner');
  -- With `before`, the newest files come first; null begins with the newest.
  v_newest_first boolean := p_where ? 'before';
  v_before uuid := p_where ->> 'before';
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    perform holdfast.raise_error('HF004', format('limit must be from 1 to 10000, got %s.', p_limit), 'limit');
  end if;
  return query
  select holdfast.build_artifact_json(f, v_now) - case when v_user is null then '' else 'key' end
  from holdfast.artifacts f
  where (v_job is null or f.job_id = v_job) and (v_batch is null or f.batch_id = v_batch)
    and (v_owner is null or f.owner = v_owner)
    and (p_where ->> 'kind' is null or f.kind = p_where ->> 'kind')
    and (p_where ->> 'name' is null or f.name = p_where ->> 'name')
    and f.status = 'visible' and (f.expires_at is null or f.expires_at > v_now) and (p_after is null or f.id > p_after)
    and (v_before is null or f.id < v_before)
  order by case when v_newest_first then f.id end desc, f.id limit p_limit;
end $$;

-- Return the newest file with this name that a running task can see: a file of its job, or one that this attempt or a
-- saved step stored.
create or replace function holdfast.find_artifact_by_name(
  p_task_id uuid, p_attempt integer, p_nonce bigint, p_name text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  v_now timestamptz := holdfast.now();
begin
  return (
  select holdfast.build_artifact_json(f, v_now) from holdfast.tasks t
    join holdfast.artifacts f on f.job_id = coalesce(t.job_id, t.id)
  where t.id = p_task_id and t.attempt = p_attempt and t.nonce = p_nonce and f.name = p_name
    and ((f.status = 'visible' and (f.expires_at is null or f.expires_at > v_now))
      or (f.status = 'staged' and f.task_id = p_task_id
        and ((f.attempt = p_attempt and f.nonce = p_nonce) or f.step_name is not null)))
  order by f.id desc limit 1);
end $$;

-- Add one to the download count of a file and return the file as get_artifact does.
create or replace function holdfast.increment_artifact_downloads(p_id uuid) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
begin
  update holdfast.artifacts f set downloads = f.downloads + 1
  where f.id = p_id and (v_user is null or f.owner = v_user) and f.status = 'visible'
    and (f.expires_at is null or f.expires_at > holdfast.now());
  return holdfast.get_artifact(p_id);
end $$;

-- Mark a visible file for deletion, which hides it at once; its object is deleted later. Return false when the file
-- does not exist or is not visible.
create or replace function holdfast.delete_artifact(p_id uuid) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  v_user text := holdfast.get_end_user_id();
  v_now timestamptz := holdfast.now();
begin
  update holdfast.artifacts f set status = 'deleting', deletion_reason = 'deleted', touched_at = v_now
  where f.id = p_id and (v_user is null or f.owner = v_user) and f.status = 'visible';
  if not found then
    return false;
  end if;
  perform holdfast.subtract_deleted_artifacts_from_usage(array[p_id], v_now);
  return true;
end $$;

-- Retry the task that saved the file, and all tasks that depend on it. Return {job_id, restarted}.
create or replace function holdfast.regenerate_artifact(p_id uuid) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
  v_file jsonb := holdfast.get_artifact(p_id);
  v_name text := (select t.name from holdfast.all_tasks t where t.id = (v_file ->> 'task_id')::uuid limit 1);
begin
  if v_name is null then
    perform holdfast.raise_error('HF002',
      format('File %s does not exist, or the task that created it is no longer stored.', p_id),
      'id', 'Submit a new job.');
  end if;
  return jsonb_build_object('job_id', v_file -> 'job_id')
    || holdfast.retry_job((v_file ->> 'job_id')::uuid, array[v_name]);
end $$;

call holdfast.grant_execute('holdfast_worker', 'stage_artifact', 'record_artifact_upload', 'find_artifact_by_name',
  'get_artifact', 'list_artifacts', 'stage_artifact_without_task', 'touch_artifact_upload');
call holdfast.grant_execute('service_role', 'stage_artifact', 'record_artifact_upload', 'find_artifact_by_name',
  'get_artifact',
  'list_artifacts', 'stage_artifact_without_task', 'touch_artifact_upload', 'increment_artifact_downloads',
  'delete_artifact', 'regenerate_artifact');
call holdfast.grant_execute('authenticated', 'get_artifact', 'list_artifacts', 'delete_artifact', 'regenerate_artifact');
