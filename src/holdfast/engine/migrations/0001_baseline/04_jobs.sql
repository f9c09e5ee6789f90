-- Jobs and tasks that have not been archived.
--
-- A job of one task is stored as the task alone: one row in `tasks` with job_id null, whose id is the job's id. Every
-- other job has a row in `jobs`, and its tasks stay in `tasks` until the job has ended and is archived. `tasks` holds
-- live tasks, `history` holds ended ones.
--
-- A task belongs to a lane. `pos` rises whenever a task becomes ready, so that every task below the lowest ready
-- position of a lane is finished (functions/leases/claim.sql).

create table holdfast.jobs (
  id uuid primary key,
  type text not null,
  owner text,
  status text not null default 'queued'
    check (status in ('queued', 'running', 'succeeded', 'partial', 'failed', 'cancelled')),
  allow_partial boolean not null default false, -- may end as `partial` when some tasks failed
  total integer not null,
  succeeded integer not null default 0,
  failed integer not null default 0,
  cancelled integer not null default 0,
  skipped integer not null default 0,
  -- The sum of the `weight` of its tasks, and of those that have ended. Their ratio is `percent`.
  progress_weight double precision not null,
  progress_weight_done double precision not null default 0,
  percent real not null default 0,
  phase text,
  message text,
  event_seq bigint not null default 0,
  params jsonb,
  labels jsonb,
  output jsonb,
  error jsonb,
  unique_key text,
  batch_id uuid,
  started_at timestamptz,
  finished_at timestamptz,
  keep_until timestamptz,
  archived boolean not null default false
) with (fillfactor = 70);
create index jobs_owner on holdfast.jobs (owner, id desc) where owner is not null;
create index jobs_batch on holdfast.jobs (batch_id) where batch_id is not null;
create index jobs_alive on holdfast.jobs (id) where finished_at is null;
create index jobs_unarchived on holdfast.jobs (finished_at) where finished_at is not null and not archived;
create index jobs_kept on holdfast.jobs (keep_until) where keep_until is not null;
-- Lists by a rare status walk this index, however many jobs there are.
create index jobs_status on holdfast.jobs (status, id);

create table holdfast.tasks (
  id uuid primary key,
  job_id uuid,                               -- null: the task is the whole job
  lane_id bigint not null,
  pos bigint,                                -- the last position it had; meaningful while ready
  nonce bigint,                              -- of the last lease; its outcome is recorded once the task no longer runs
  worker_id bigint,
  due_at timestamptz not null,               -- scheduled: when it becomes ready; ready: since when
  started_at timestamptz,
  lease_until timestamptz,
  attempt integer not null default 0,        -- rises with every claim and is never reset
  failures integer not null default 0,       -- attempts charged against the retry policy
  crashes smallint not null default 0,       -- deaths of its process that were charged to the task
  status text not null
    check (status in ('waiting', 'scheduled', 'ready', 'running', 'succeeded', 'failed', 'cancelled')),
  args jsonb,
  -- The columns from here on are null in most rows.
  name text,
  owner text,
  pending_parents integer,                   -- number of parents that have not ended; null: it has no parents
  snoozes integer,
  losses smallint,                           -- consecutive attempts whose worker was lost; not charged
  suspect boolean,                           -- its process died: the next attempt runs alone in a child process
  outcome text,                              -- of the last lease, if it did not end the task
  weight double precision,
  start_before timestamptz,
  finished_at timestamptz,
  percent real,
  phase text,
  message text,
  event_seq bigint,
  output jsonb,
  error jsonb,
  labels jsonb,
  unique_key text,
  batch_id uuid,
  has_staged_files boolean,                  -- an attempt staged a file; finishing other tasks need not look for files
  check (status <> 'ready' or pos is not null),
  check (status <> 'running' or (nonce is not null and lease_until is not null and started_at is not null))
) with (
  -- All rows of a page are claimed at about the same time. With room for a second version of each row, the log
  -- records only what changed: 926 bytes per task instead of 1,070 to claim, finish and archive it.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
  autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0
);
create index tasks_ready on holdfast.tasks (lane_id, pos) where status = 'ready';
create index tasks_scheduled on holdfast.tasks (due_at) where status = 'scheduled';
create index tasks_running on holdfast.tasks (lease_until) where status = 'running';
create index tasks_job on holdfast.tasks (job_id) where job_id is not null;
create index tasks_owner on holdfast.tasks (owner, id desc) where owner is not null and job_id is null;
create index tasks_batch on holdfast.tasks (batch_id) where batch_id is not null;
create index tasks_start_before on holdfast.tasks (start_before) where start_before is not null;
-- Tasks of graphs that ended stay here until their job is archived; metrics by the minute read them through this index.
create index tasks_finished on holdfast.tasks (finished_at) where finished_at is not null;

-- No cache: a session that reserved positions would hand them out below everybody's cursor.
create sequence holdfast.task_positions as bigint;
-- Microseconds since 1970 up to which no task is scheduled or leased any more: a hint, as every cursor is.
create sequence holdfast.sweep_horizon_us as bigint minvalue 0 start 0;
create sequence holdfast.last_full_sweep_us as bigint minvalue 0 start 0;

-- Dependencies between the tasks of a job.
create table holdfast.dependencies (
  parent_id uuid not null,
  child_id uuid not null,
  job_id uuid not null,
  on_failure text not null default 'fail' check (on_failure in ('fail', 'skip', 'run')),
  satisfied boolean not null default false,
  primary key (parent_id, child_id)
);
create index dependencies_child on holdfast.dependencies (child_id);
create index dependencies_job on holdfast.dependencies (job_id);

-- Idempotency keys of jobs.
create table holdfast.idempotency_keys (
  scope text not null,
  key text not null,
  job_id uuid not null,
  body_hash bytea not null,                  -- of the submitted body: the same key with another body is a conflict
  active_only boolean not null,
  keep_until timestamptz,
  primary key (scope, key)
);
create index idempotency_keys_kept on holdfast.idempotency_keys (keep_until) where keep_until is not null;

-- Saved results of the steps of a task: a later attempt skips them.
create table holdfast.step_results (
  task_id uuid not null,
  name text not null check (octet_length(name) between 1 and 200),
  job_id uuid not null,
  value jsonb,
  attempt integer not null,
  at timestamptz not null,
  primary key (task_id, name)
);

create table holdfast.batches (
  id uuid primary key,
  name text,
  owner text,
  total bigint not null default 0,
  ended bigint not null default 0,
  failed bigint not null default 0,
  closed_at timestamptz,
  finished_at timestamptz,
  callback jsonb,
  callback_job uuid,
  keep_until timestamptz,
  event_seq bigint not null default 0,
  cancelled integer not null default 0
) with (fillfactor = 50);
create index batches_owner on holdfast.batches (owner, id desc) where owner is not null;
create index batches_kept on holdfast.batches (keep_until) where keep_until is not null;
