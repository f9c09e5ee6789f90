-- Operations: metrics over time, ignored error groups, actions on many jobs, saved views and reruns.

-- One row per minute, queue and type in which a task ended, and the same per quarter of an hour for longer views.
-- `wait_histogram` and `run_histogram` count tasks by powers of two of milliseconds: element n counts the tasks that
-- took less than 2^(n-1) ms and at least half of that.
create table holdfast.metric_samples (
  span_s integer not null check (span_s in (60, 900)),
  at timestamptz not null,
  queue text not null,
  type text not null,
  succeeded bigint not null default 0,
  failed bigint not null default 0,
  cancelled bigint not null default 0,
  wait_histogram bigint[] not null,
  run_histogram bigint[] not null,
  primary key (span_s, at, queue, type)
);

-- The depth of each queue at that minute.
create table holdfast.queue_depths (
  at timestamptz not null,
  queue text not null,
  ready bigint not null,
  running bigint not null,
  oldest_s double precision,
  primary key (at, queue)
);

-- Error groups that an operator ignores: error lists leave them out until a time.
create table holdfast.ignored_error_groups (
  fingerprint text primary key check (octet_length(fingerprint) between 1 and 1000),
  ignored_until timestamptz,
  ignored_by text,
  ignored_reason text,
  link text
);

create table holdfast.bulk_actions (
  id uuid primary key,
  verb text not null check (verb in ('retry', 'cancel')),
  status text not null default 'running' check (status in ('running', 'paused', 'stopped', 'done', 'undone')),
  search text not null,                      -- as it was typed
  owner text,                                -- null: jobs of every owner
  started_by text not null,
  reason text not null,
  total bigint not null,
  done bigint not null default 0,            -- jobs that this action retried or cancelled
  skipped bigint not null default 0,         -- jobs that had changed in the meantime and were left alone
  failed_again bigint not null default 0,    -- retried jobs that are known to have failed again
  undone bigint not null default 0,
  stage integer not null default 0,          -- the stage that runs now, from 1; 0: not started
  stage_sizes integer[] not null default '{10,100}', -- jobs in each of the first stages; the last stage takes the rest
  max_jobs_per_s double precision check (max_jobs_per_s > 0), -- null: no limit
  -- The action stops by itself when more than this share of the retried jobs failed again.
  max_failed_share double precision not null default 0.2 check (max_failed_share between 0 and 1),
  stop_reason text,
  created_at timestamptz not null,
  stage_started_at timestamptz,
  finished_at timestamptz
) with (fillfactor = 50);
create index bulk_actions_open on holdfast.bulk_actions (id) where status in ('running', 'paused');

create table holdfast.bulk_action_jobs (
  bulk_id uuid not null references holdfast.bulk_actions on delete cascade,
  job_id uuid not null,
  stage integer,                             -- null: not processed yet
  outcome text check (outcome in ('done', 'skipped', 'undone')),
  at timestamptz,
  primary key (bulk_id, job_id)
);
create index bulk_action_jobs_left on holdfast.bulk_action_jobs (bulk_id, job_id) where outcome is null;
create index bulk_action_jobs_stage on holdfast.bulk_action_jobs (bulk_id, stage) where stage is not null;

create table holdfast.saved_views (
  id uuid primary key,
  name text not null check (octet_length(name) between 1 and 200),
  page text not null default 'jobs',
  search text not null check (octet_length(search) <= 4000),
  saved_by text not null,
  shared boolean not null default true,
  created_at timestamptz not null,
  unique (saved_by, page, name)
);

-- Which job a person resubmitted as which new job.
create table holdfast.reruns (
  new_job_id uuid primary key,
  old_job_id uuid not null,
  started_by text not null,
  at timestamptz not null
);
create index reruns_old on holdfast.reruns (old_job_id);

-- Rows whose maintenance failed because of their data, and effects of ended jobs that could not be applied. The row is
-- left out until retry_at, so that it does not stop the maintenance of other rows. The problem is deleted when the
-- maintenance of the row succeeds.
create table holdfast.maintenance_problems (
  kind text not null,                        -- what failed, such as 'lease' or 'batch callback'
  subject text not null,                     -- the id or the name of the row
  message text not null,
  failures integer not null default 1,       -- consecutive ones
  first_at timestamptz not null,
  last_at timestamptz not null,
  retry_at timestamptz not null,
  primary key (kind, subject)
);
