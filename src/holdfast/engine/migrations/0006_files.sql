-- Files: what jobs leave in the object store, and how much of it an owner may have. Bytes are never in rows.
--
-- A row is there before its object is: whatever a crash leaves in the store can be found by a row. It is
--   uploading   bytes are on their way
--   staged      bytes are stored, and nobody sees them before the task has succeeded under the same lease
--   visible     the task has succeeded
--   doomed      expired, deleted, replaced, or of an attempt that lost: the object is to be deleted
--   gone        the object was deleted; kept a while, so that a reader learns that there was one

create table holdfast.artifacts (
  id uuid primary key,
  job_id uuid not null,                      -- of a file that no job made: its own id
  task_id uuid,
  attempt integer,
  nonce bigint,
  batch_id uuid,
  type text,                                 -- of the job
  owner text,
  kind text not null check (octet_length(kind) between 1 and 100),
  name text not null check (octet_length(name) between 1 and 1020),
  key text not null unique,
  content_type text not null check (octet_length(content_type) between 3 and 255),
  size bigint check (size >= 0),
  sha256 text check (sha256 ~ '^[0-9a-f]{64}$'),
  meta jsonb not null default '{}',
  status text not null check (status in ('uploading', 'staged', 'visible', 'doomed', 'gone')),
  why text check (why in ('expired', 'deleted', 'replaced', 'lost')),
  counted boolean not null default false,    -- part of what its owner uses
  downloads bigint not null default 0,
  ttl_s double precision check (ttl_s > 0),
  created_at timestamptz not null,
  touched_at timestamptz not null,           -- when the status changed, or the deletion was last tried
  expires_at timestamptz,
  check (status not in ('staged', 'visible') or (size is not null and sha256 is not null)),
  check (status not in ('doomed', 'gone') or why is not null)
) with (fillfactor = 80);
create index artifacts_job on holdfast.artifacts (job_id, id);
create index artifacts_task on holdfast.artifacts (task_id) where task_id is not null;
create index artifacts_batch on holdfast.artifacts (batch_id, id) where batch_id is not null;
create index artifacts_owner on holdfast.artifacts (owner, id desc) where owner is not null and status = 'visible';
create index artifacts_expiring on holdfast.artifacts (expires_at) where status = 'visible' and expires_at is not null;
create index artifacts_unseen on holdfast.artifacts (touched_at) where status in ('uploading', 'staged');
create index artifacts_doomed on holdfast.artifacts (touched_at) where status = 'doomed';
create index artifacts_uncounted on holdfast.artifacts (id) where status = 'doomed' and counted;
create index artifacts_gone on holdfast.artifacts (touched_at) where status = 'gone';

-- How long files are kept, unless the one who saves them says: the narrowest rule counts. '' is everything.
create table holdfast.artifact_rules (
  owner text not null default '',
  type text not null default '',             -- of the job
  ttl_s double precision check (ttl_s > 0),  -- null: for ever
  primary key (owner, type)
);

-- What an owner may have and do; null: as much as they like. '' is for everybody who has no row.
create table holdfast.quotas (
  owner text primary key,
  bytes bigint check (bytes >= 0),
  files bigint check (files >= 0),
  operations bigint check (operations >= 0)  -- jobs a day, by the clock of UTC
);

-- What an owner has. The lock on this row is what makes quotas exact.
create table holdfast.usage (
  owner text primary key,
  bytes bigint not null default 0 check (bytes >= 0),
  files bigint not null default 0 check (files >= 0),
  day date,
  operations bigint not null default 0
) with (fillfactor = 50);

-- Set when an attempt of the task stages a file, so that finishing the others costs nothing.
alter table holdfast.tasks add column files boolean;

do $$
declare
  v_table text;
begin
  foreach v_table in array '{artifacts,artifact_rules,quotas,usage}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
