-- Ended tasks, failed attempts, events and log lines, partitioned by the day on which they may be deleted: to delete
-- a day is to drop its partitions. Rows of a day without a partition, and rows that are kept longer than partitions
-- are created ahead, go to the default partition.

create table holdfast.history (
  id uuid not null,
  job_id uuid,
  policy_id bigint not null,
  nonce bigint,
  worker_id bigint,
  due_at timestamptz not null,
  started_at timestamptz,
  finished_at timestamptz not null,
  keep_until timestamptz not null,
  attempt integer not null,
  failures integer not null,
  crashes smallint not null,
  priority smallint not null,
  status text not null check (status in ('succeeded', 'failed', 'cancelled')),
  args jsonb,
  output jsonb,
  error jsonb,
  name text,
  owner text,
  limit_key text,
  weight double precision,
  percent real,
  phase text,
  message text,
  event_seq bigint,
  labels jsonb,
  batch_id uuid
) partition by range (keep_until);
create index history_id on holdfast.history (id);
create index history_job on holdfast.history (job_id) where job_id is not null;
create index history_owner on holdfast.history (owner, id desc) where owner is not null and job_id is null;
create index history_batch on holdfast.history (batch_id) where batch_id is not null;
create index history_failed on holdfast.history (policy_id, finished_at) where status = 'failed';
-- Searches walk ids downwards. Lists by a rare status walk an index of that status, however long the history is.
create index history_failed_id on holdfast.history (id) where status = 'failed';
create index history_cancelled_id on holdfast.history (id) where status = 'cancelled';
-- Metrics are computed from the tasks that ended in a minute. Rows arrive nearly in that order, so a block range
-- index finds them and costs the hot path almost nothing.
create index history_finished on holdfast.history using brin (finished_at) with (pages_per_range = 16);
-- Failures in the order of their time, whatever their type: a redrive walks them from the oldest. Tasks that
-- succeeded, nearly all rows, are not in it.
create index history_failed_at on holdfast.history (finished_at) where status = 'failed';

create table holdfast.attempts (
  task_id uuid not null,
  job_id uuid not null,
  attempt integer not null,
  outcome text not null
    check (outcome in ('failed', 'crashed', 'lost', 'snoozed', 'released', 'rejected', 'cancelled')),
  worker_id bigint,
  started_at timestamptz,
  ended_at timestamptz not null,
  keep_until timestamptz not null,
  owner text,
  error_type text,
  message text,
  traceback text,
  fingerprint text
) partition by range (keep_until);
create index attempts_task on holdfast.attempts (task_id, attempt);
create index attempts_cause on holdfast.attempts (fingerprint, ended_at) where fingerprint is not null;

create table holdfast.events (
  job_id uuid not null,
  seq bigint not null,
  at timestamptz not null,
  keep_until timestamptz not null,
  owner text,
  kind text not null,
  body jsonb
) partition by range (keep_until);
create index events_job on holdfast.events (job_id, seq);

create sequence holdfast.log_line_numbers as bigint;

create table holdfast.logs (
  n bigint not null,                         -- rises within a job in the order in which lines become visible
  task_id uuid not null,
  job_id uuid not null,
  attempt integer not null,
  seq integer not null,                      -- within the attempt, from 1
  at timestamptz not null,
  keep_until timestamptz not null,
  owner text,
  level text not null check (level in ('debug', 'info', 'warning', 'error')),
  message text not null,
  fields jsonb
) partition by range (keep_until);
create index logs_job on holdfast.logs (job_id, n);
create index logs_task on holdfast.logs (task_id, attempt, seq);

create table holdfast.history_default partition of holdfast.history default;
create table holdfast.attempts_default partition of holdfast.attempts default;
create table holdfast.events_default partition of holdfast.events default;
create table holdfast.logs_default partition of holdfast.logs default;
