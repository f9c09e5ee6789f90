-- Jobs, tasks, and what goes with them.
--
-- A job of one task is the task alone: one row in `tasks` with job_id null, whose id is the job's id. Other
-- jobs have a row in `jobs`, and their tasks stay in `tasks` until the job has ended and is archived.
-- `tasks` holds what is alive, `history` what has ended, in partitions by the day on which it may be forgotten.
--
-- A task is in a lane: what is claimed alike (queue, type, priority, limit key, policy). `pos` rises whenever a
-- task becomes ready, so that below the lowest ready position of a lane everything is over (see claim.sql).

create table holdfast.options (
  name text primary key,
  value jsonb not null
);

-- Only queues that somebody paused or tuned have a row.
create table holdfast.queues (
  name text primary key check (octet_length(name) between 1 and 200),
  paused_at timestamptz,
  paused_by text,
  paused_why text,
  ageing_s double precision not null default 60 check (ageing_s > 0), -- a wait this long is worth one priority
  keep_s bigint check (keep_s >= 0),         -- history of what succeeded or was cancelled
  keep_failed_s bigint check (keep_failed_s >= 0)
);

create table holdfast.kinds (
  id bigint generated always as identity primary key,
  queue text not null,
  type text not null check (octet_length(type) between 1 and 200),
  policy jsonb not null default '{}',        -- what differs from the defaults, as it was submitted
  attempts integer not null default 5,
  base_s double precision not null default 5,
  cap_s double precision not null default 900,
  jitter double precision not null default 0.2,
  timeout_s double precision not null default 600,
  lease_s double precision not null default 60,
  crashes integer not null default 3,
  check (octet_length(queue) between 1 and 200)
);
-- Not unique, nor are lanes: the first submit of a kind would make all others wait for its transaction. Two rows
-- for the same thing do no harm.
create index kinds_identity on holdfast.kinds (queue, type);

-- What may run at once or per time, as people set it; and the counters of each rule, one row per key.
create table holdfast.limit_rules (
  name text primary key check (octet_length(name) between 1 and 200),
  queue text,                                -- null: every queue
  type text,                                 -- null: every type
  per_key boolean not null default false,
  max_running integer check (max_running >= 0),
  rate double precision check (rate > 0),    -- units a second
  burst double precision check (burst >= 1)
);

create table holdfast.limits (
  id bigint generated always as identity primary key,
  rule text not null references holdfast.limit_rules on update cascade on delete cascade,
  key text,
  running integer not null default 0 check (running >= 0),
  tokens double precision,
  refilled_at timestamptz,
  asleep_until timestamptz
) with (fillfactor = 50);
create unique index limits_identity on holdfast.limits (rule, coalesce(key, ''));

create table holdfast.lanes (
  id bigint generated always as identity primary key,
  kind_id bigint not null references holdfast.kinds,
  queue text not null,
  type text not null,
  priority smallint not null default 0 check (priority between -100 and 100),
  limit_key text,
  limit_ids bigint[],                        -- rising; null: nothing to count
  limits_known boolean not null default false, -- limit_ids was found out; done by the first claim
  cursor bigint not null default 0,          -- a hint: nothing ready lies below
  served_at timestamptz,
  swept_at timestamptz
) with (fillfactor = 50);
create index lanes_identity on holdfast.lanes (kind_id, priority, limit_key);
create index lanes_queue on holdfast.lanes (queue, type);

create table holdfast.workers (
  id bigint generated always as identity primary key,
  name text not null unique check (octet_length(name) between 1 and 200),
  queues text[] not null default '{}',
  types text[],
  sleeping boolean not null default false,
  about jsonb,
  started_at timestamptz not null,
  seen_at timestamptz not null
) with (fillfactor = 50);

create table holdfast.jobs (
  id uuid primary key,
  type text not null,
  owner text,
  status text not null default 'queued'
    check (status in ('queued', 'running', 'succeeded', 'partial', 'failed', 'cancelled')),
  partial boolean not null default false,    -- may end as `partial` when some tasks failed
  total integer not null,
  succeeded integer not null default 0,
  failed integer not null default 0,
  cancelled integer not null default 0,
  skipped integer not null default 0,
  weight double precision not null,
  weight_done double precision not null default 0,
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

create table holdfast.tasks (
  id uuid primary key,
  job_id uuid,                               -- null: the task is the whole job
  lane_id bigint not null,
  pos bigint,                                -- last position taken; counts while ready
  nonce bigint,                              -- of the last lease; its outcome is recorded once it no longer runs
  worker_id bigint,
  due_at timestamptz not null,               -- scheduled: when; ready: since when
  started_at timestamptz,
  lease_until timestamptz,
  attempt integer not null default 0,        -- rises with every claim and is never reset
  failures integer not null default 0,       -- attempts charged against the policy
  crashes smallint not null default 0,
  status text not null
    check (status in ('waiting', 'scheduled', 'ready', 'running', 'succeeded', 'failed', 'cancelled')),
  args jsonb,
  -- from here on mostly null
  name text,
  owner text,
  waits integer,                             -- parents that have not ended; null: it has none
  snoozes integer,
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
  check (status <> 'ready' or pos is not null),
  check (status <> 'running' or (nonce is not null and lease_until is not null and started_at is not null))
) with (
  fillfactor = 70,
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

-- No cache: a session that kept positions in reserve would hand them out below everyone's cursor.
create sequence holdfast.positions as bigint;
-- Microseconds since 1970 up to which nothing is scheduled or leased any more: a hint, like every cursor.
create sequence holdfast.horizon as bigint minvalue 0 start 0;
create sequence holdfast.full_sweep as bigint minvalue 0 start 0;

create table holdfast.edges (
  parent_id uuid not null,
  child_id uuid not null,
  job_id uuid not null,
  on_failure text not null default 'fail' check (on_failure in ('fail', 'skip', 'run')),
  satisfied boolean not null default false,
  primary key (parent_id, child_id)
);
create index edges_child on holdfast.edges (child_id);
create index edges_job on holdfast.edges (job_id);

create table holdfast.keys (
  scope text not null,
  key text not null,
  job_id uuid not null,
  hash bytea not null,
  active_only boolean not null,
  keep_until timestamptz,
  primary key (scope, key)
);
create index keys_kept on holdfast.keys (keep_until) where keep_until is not null;

create table holdfast.steps (
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
  keep_until timestamptz
) with (fillfactor = 50);
create index batches_owner on holdfast.batches (owner, id desc) where owner is not null;
create index batches_kept on holdfast.batches (keep_until) where keep_until is not null;

create table holdfast.history (
  id uuid not null,
  job_id uuid,
  kind_id bigint not null,
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
create index history_failed on holdfast.history (kind_id, finished_at) where status = 'failed';

create table holdfast.attempts (
  task_id uuid not null,
  job_id uuid not null,
  attempt integer not null,
  outcome text not null check (outcome in ('failed', 'crashed', 'snoozed', 'released', 'rejected', 'cancelled')),
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

-- What fits no day yet made, or is kept longer than days are made ahead, goes to the default partition.
create table holdfast.history_rest partition of holdfast.history default;
create table holdfast.attempts_rest partition of holdfast.attempts default;
create table holdfast.events_rest partition of holdfast.events default;

do $$
declare
  v_table text;
begin
  for v_table in
    select c.relname from pg_catalog.pg_class c
    where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')
      and c.relname in ('options', 'queues', 'kinds', 'limit_rules', 'limits', 'lanes', 'workers', 'jobs', 'tasks', 'edges', 'keys',
        'steps', 'batches', 'history', 'attempts', 'events', 'history_rest', 'attempts_rest', 'events_rest')
  loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
