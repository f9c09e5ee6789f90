-- Operations: metrics over time, error causes, actions on many jobs, saved views and reruns.

-- One row per minute, queue and type in which a task ended, and the same per quarter of an hour for longer views.
-- `waits` and `runs` are histograms by powers of two of milliseconds: element n counts the tasks that took less than
-- 2^(n-1) ms and at least half of that.
create table holdfast.metric_samples (
  span_s integer not null check (span_s in (60, 900)),
  at timestamptz not null,
  queue text not null,
  type text not null,
  succeeded bigint not null default 0,
  failed bigint not null default 0,
  cancelled bigint not null default 0,
  waits bigint[] not null,
  runs bigint[] not null,
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

-- Decisions about a cause of errors.
create table holdfast.error_causes (
  fingerprint text primary key check (octet_length(fingerprint) between 1 and 1000),
  ignored_until timestamptz,
  ignored_by text,
  why text,
  link text
);

create table holdfast.bulk_actions (
  id uuid primary key,
  verb text not null check (verb in ('retry', 'cancel')),
  status text not null default 'running' check (status in ('running', 'paused', 'stopped', 'done', 'undone')),
  search text not null,                      -- as it was typed
  owner text,                                -- null: jobs of every owner
  started_by text not null,
  why text not null,
  total bigint not null,
  done bigint not null default 0,            -- jobs that this action retried or cancelled
  passed bigint not null default 0,          -- jobs that had changed in the meantime and were left alone
  again bigint not null default 0,           -- jobs that failed again, as far as is known
  undone bigint not null default 0,
  wave integer not null default 0,
  ramp integer[] not null default '{10,100}', -- sizes of the first waves; the last wave takes the rest
  per_s double precision check (per_s > 0),   -- maximum number of jobs per second; null: no limit
  stop_share double precision not null default 0.2 check (stop_share between 0 and 1),
  stopped_why text,
  created_at timestamptz not null,
  waved_at timestamptz,
  finished_at timestamptz
) with (fillfactor = 50);
create index bulk_actions_open on holdfast.bulk_actions (id) where status in ('running', 'paused');

create table holdfast.bulk_jobs (
  bulk_id uuid not null references holdfast.bulk_actions on delete cascade,
  job_id uuid not null,
  wave integer,                              -- null: not processed yet
  outcome text check (outcome in ('done', 'passed', 'undone')),
  at timestamptz,
  primary key (bulk_id, job_id)
);
create index bulk_jobs_left on holdfast.bulk_jobs (bulk_id, job_id) where outcome is null;
create index bulk_jobs_wave on holdfast.bulk_jobs (bulk_id, wave) where wave is not null;

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
  new_id uuid primary key,
  old_id uuid not null,
  started_by text not null,
  at timestamptz not null
);
create index reruns_old on holdfast.reruns (old_id);
