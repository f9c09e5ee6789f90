-- Task queues, lanes and workers.

-- Settings of the installation that are stored in the database, one row each.
create table holdfast.options (
  name text primary key,
  value jsonb not null
);

-- A queue has a row only after it was paused or configured.
create table holdfast.queues (
  name text primary key check (octet_length(name) between 1 and 200),
  paused_at timestamptz,
  paused_by text,
  paused_reason text,
  paused_until timestamptz,                  -- null: until somebody resumes it
  ageing_s double precision not null default 60 check (ageing_s > 0), -- waiting this long raises the priority by one
  keep_s bigint check (keep_s >= 0),         -- how long to keep jobs that succeeded or were cancelled
  keep_failed_s bigint check (keep_failed_s >= 0),
  fair_owners boolean not null default false -- each owner has lanes of its own, and the owners take turns
);

-- A queue, a task type and a retry policy, as tasks are submitted with them.
create table holdfast.task_policies (
  id bigint generated always as identity primary key,
  queue text not null,
  type text not null check (octet_length(type) between 1 and 200),
  policy jsonb not null default '{}',        -- only what differs from the defaults, as it was submitted
  max_attempts integer not null default 5,
  backoff_base_s double precision not null default 5,
  backoff_cap_s double precision not null default 900,
  jitter double precision not null default 0.2,
  timeout_s double precision not null default 600,
  lease_s double precision not null default 60,
  max_crashes integer not null default 3,
  check (octet_length(queue) between 1 and 200)
);
-- Neither this index nor lanes_identity is unique: with a unique index the first submit of a new policy would make all
-- others wait for its transaction. Two rows for the same policy do no harm.
create index task_policies_identity on holdfast.task_policies (queue, type);

-- A lane holds the tasks that are claimed alike: same policy, priority, limit key and, in a fair queue, owner. Tasks
-- that were returned (their worker died, or released them) wait in a lane of their own, which is served first.
create table holdfast.lanes (
  id bigint generated always as identity primary key,
  policy_id bigint not null references holdfast.task_policies,
  queue text not null,
  type text not null,
  priority smallint not null default 0 check (priority between -100 and 100),
  returned boolean not null default false,   -- for tasks that were returned after a claim
  claim_priority smallint not null generated always as ((priority + case when returned then 1000 else 0 end)::smallint)
    stored,
  limit_key text,
  limit_ids bigint[],                        -- ascending; null: no limit applies
  limits_assigned boolean not null default false, -- limit_ids was determined; the first claim does it
  cursor bigint not null default 0,          -- a hint: no ready task has a lower position
  served_at timestamptz,
  fair_owner text,                           -- the owner, in a queue with fair_owners
  created_at timestamptz,
  closed_at timestamptz,                     -- empty for a long time: takes no new tasks, and is deleted later
  -- The row is deleted once no transaction can still see the lane open.
  closed_xid bigint
) with (fillfactor = 50);
create index lanes_identity on holdfast.lanes (policy_id, priority, coalesce(limit_key, ''), coalesce(fair_owner, ''))
  where closed_at is null and not returned;
create index lanes_returned on holdfast.lanes (policy_id) where closed_at is null and returned;
create index lanes_plain on holdfast.lanes (queue, type) where limit_key is null and fair_owner is null;
-- Lanes with a limit key or a fair owner form rotations; a claim reads a bounded part of them
-- (functions/leases/claim_lanes.sql).
create index lanes_rotation on holdfast.lanes (queue, type, claim_priority, id)
  where limit_key is not null or fair_owner is not null;

-- When empty lanes were last removed, in seconds since 1970: a hint.
create sequence holdfast.last_lane_cleanup_s as bigint minvalue 0 start 0;

-- How far a lane that takes turns was read, and when it was served. These are hints, so a crash may lose them. They
-- are not columns of `lanes`, because every outcome reads that table: while an old snapshot is open, each version of
-- a row stays, and a reader walks all versions to find the newest. Here the newest version is found first, by its
-- number.
create unlogged table holdfast.lane_cursors (
  lane_id bigint not null,
  version bigint not null default 0,
  served_at timestamptz not null,
  cursor bigint not null,
  scan_start bigint,                         -- the position at which scans start
  seen_pos bigint,                           -- the lowest ready position at seen_at
  seen_xid bigint,                           -- the next transaction id at seen_at
  seen_at timestamptz,
  rescanned_at timestamptz                   -- when a scan last started at `cursor`
) with (fillfactor = 50);
-- Not unique: the first transaction to serve a lane would make others wait. Two rows for one lane do no harm.
create index lane_cursors_newest on holdfast.lane_cursors (lane_id, version);

-- A lane during one claim (functions/leases/claim.sql).
create type holdfast.claim_lane as (
  id bigint,
  queue text,
  type text,
  in_rotation boolean,
  limit_ids bigint[],
  limits_assigned boolean,
  lease_s double precision,
  timeout_s double precision,
  max_attempts integer,
  rank double precision,
  served_at timestamptz,
  stored_cursor bigint,
  first_ready_pos bigint,
  scan_start bigint,                         -- the position at which scans start
  exact_cursor bigint,                       -- no ready task has a lower position
  renew_seen_pos boolean,                    -- whether to store first_ready_pos as seen_pos
  rescanned boolean,                         -- whether the scan started at the stored cursor
  next_xid bigint,
  hint jsonb,                                -- the hint to return to the caller
  rotation text,                             -- which rotation it takes turns in
  turn bigint,                               -- its place in the rotation for this claim
  should_write boolean                       -- whether its row is worth writing when it is served
);

create table holdfast.workers (
  id bigint generated always as identity primary key,
  name text not null unique check (octet_length(name) between 1 and 200),
  queues text[] not null default '{}',
  types text[],
  sleeping boolean not null default false,
  woken_at timestamptz,                      -- when it was notified last; null once it has no free slot
  report jsonb,                              -- what it says about itself: host, process id, slots, version
  started_at timestamptz not null,
  seen_at timestamptz not null,
  command text check (command in ('drain', 'stop')), -- what an operator asked the worker to do
  stopped_at timestamptz,                       -- when it shut down
  lost boolean not null default false        -- it vanished instead of shutting down
) with (fillfactor = 50);

-- Wakeups: "this queue has work", written in a transaction and published when it commits
-- (functions/leases/wakeups.sql). No one reads the table: a row exists to fire its trigger and is deleted at once.
create unlogged table holdfast.wakeups (
  queue text not null,
  type text not null,
  workers integer not null                   -- how many workers to wake
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- When all workers of all queues were woken last, in microseconds. In a sequence, so that it counts before a commit.
create sequence holdfast.last_broadcast_us as bigint minvalue 0 start 0;

-- The task types that workers registered when they started. `schema` describes the arguments.
create table holdfast.task_types (
  name text primary key check (octet_length(name) between 1 and 200),
  queue text not null,
  schema jsonb,
  hash text not null,
  doc text,
  options jsonb not null default '{}',
  worker text,                               -- the last worker that registered it
  version text,
  first_seen_at timestamptz not null,
  changed_at timestamptz not null,
  seen_at timestamptz not null
);
