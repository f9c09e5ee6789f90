-- Files: objects in the object store. Rows describe them; bytes are never stored in rows.
--
-- A row exists before its object does. So every object that a crash leaves behind can be found through a row.
-- The status of a row:
--   uploading   bytes are being uploaded
--   staged      bytes are stored; the file is invisible until the task succeeds under the same lease
--   visible     the task succeeded
--   deleting    expired, deleted, replaced, or of an attempt that lost its lease: the object is to be deleted
--   gone        the object was deleted; the row is kept for a while so that a reader learns that the file existed

create table holdfast.artifacts (
  id uuid primary key,
  job_id uuid not null,                      -- of a file without a job: its own id
  task_id uuid,
  attempt integer,
  nonce bigint,
  batch_id uuid,
  job_type text,
  owner text,
  kind text not null check (octet_length(kind) between 1 and 100),
  name text not null check (octet_length(name) between 1 and 1020),
  key text not null unique,
  content_type text not null check (octet_length(content_type) between 3 and 255),
  size bigint check (size >= 0),
  sha256 text check (sha256 ~ '^[0-9a-f]{64}$'),
  meta jsonb not null default '{}',
  status text not null check (status in ('uploading', 'staged', 'visible', 'deleting', 'gone')),
  deletion_reason text check (deletion_reason in ('expired', 'deleted', 'replaced', 'lost')),
  counted_in_usage boolean not null default false, -- its size is part of the usage of its owner
  downloads bigint not null default 0,
  ttl_s double precision check (ttl_s > 0),
  created_at timestamptz not null,
  touched_at timestamptz not null,           -- when the status changed, or the deletion was last attempted
  expires_at timestamptz,
  -- The saved step of a staged file: a later attempt that skips the step shows the file when it succeeds.
  step_name text,
  check (status not in ('staged', 'visible') or (size is not null and sha256 is not null)),
  check (status not in ('deleting', 'gone') or deletion_reason is not null)
) with (fillfactor = 80);
create index artifacts_job on holdfast.artifacts (job_id, id);
create index artifacts_task on holdfast.artifacts (task_id) where task_id is not null;
create index artifacts_batch on holdfast.artifacts (batch_id, id) where batch_id is not null;
create index artifacts_owner on holdfast.artifacts (owner, id desc) where owner is not null and status = 'visible';
create index artifacts_expiring on holdfast.artifacts (expires_at) where status = 'visible' and expires_at is not null;
create index artifacts_unseen on holdfast.artifacts (touched_at) where status in ('uploading', 'staged');
create index artifacts_deleting on holdfast.artifacts (touched_at) where status = 'deleting';
create index artifacts_uncounted on holdfast.artifacts (id) where status = 'deleting' and counted_in_usage;
create index artifacts_gone on holdfast.artifacts (touched_at) where status = 'gone';

-- How long files are kept unless the caller that saves them sets a time. The narrowest rule applies; '' matches
-- everything.
create table holdfast.artifact_retention_rules (
  owner text not null default '',
  job_type text not null default '',
  ttl_s double precision check (ttl_s > 0),  -- null: forever
  primary key (owner, job_type)
);
