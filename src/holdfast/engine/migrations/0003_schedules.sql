-- Schedules, the catalogue of task types, and lanes that are shared fairly and do not last for ever.

-- Workers are at work meanwhile. Every submit reads `options` first and every exchange and beat `workers`: behind these two they
-- wait without holding anything, so that the other tables can be had without a deadlock.
lock table holdfast.options, holdfast.workers in access exclusive mode;
lock table holdfast.queues, holdfast.kinds, holdfast.limit_rules, holdfast.lanes, holdfast.tasks, holdfast.jobs, holdfast.limits,
  holdfast.history, holdfast.events, holdfast.attempts, holdfast.edges, holdfast.steps, holdfast.batches, holdfast.keys in access exclusive mode;

create table holdfast.schedules (
  name text primary key check (octet_length(name) between 1 and 200),
  cron text,                                 -- five fields; or
  every_s double precision check (every_s between 1 and 315360000),
  timezone text not null default 'UTC',
  missed text not null default 'coalesce' check (missed in ('skip', 'coalesce', 'catch_up')),
  most integer not null default 100 check (most between 1 and 1000), -- with catch_up: so many runs are made up for
  job jsonb not null,                        -- what `submit` is given
  owner text,
  source text,                               -- the application whose code declares it; null: made by somebody
  anchor_at timestamptz not null,            -- intervals are counted from here
  next_at timestamptz not null,
  last_at timestamptz,                       -- the time that the last run was for
  last_job uuid,
  last_error text,                           -- why the last run could not be submitted
  paused_at timestamptz,
  paused_by text,
  created_at timestamptz not null,
  changed_at timestamptz not null,
  check ((cron is null) <> (every_s is null))
) with (fillfactor = 50);
create index schedules_due on holdfast.schedules (next_at) where paused_at is null;
create index schedules_owner on holdfast.schedules (owner, name) where owner is not null;

-- What workers can run, as they said when they started. `schema` describes the arguments.
create table holdfast.task_types (
  name text primary key check (octet_length(name) between 1 and 200),
  queue text not null,
  schema jsonb,
  hash text not null,
  doc text,
  options jsonb not null default '{}',
  worker text,                               -- who said so last
  version text,
  first_seen_at timestamptz not null,
  changed_at timestamptz not null,
  seen_at timestamptz not null
);

-- Keys that rest until a time, whatever limits there are.
create table holdfast.resting_keys (
  key text primary key check (octet_length(key) between 1 and 1000),
  until timestamptz not null
) with (fillfactor = 50);

-- In such a queue each owner has lanes of its own, and the owners take turns.
alter table holdfast.queues add column fair_owners boolean not null default false;

alter table holdfast.lanes
  add column share text,                     -- the owner, in a queue where owners take turns
  add column made_at timestamptz,
  add column closed_at timestamptz,          -- empty for long: takes no more tasks, and goes when nobody can have seen it open
  add column closed_xid bigint,
  -- The reading hint of a lane with a key or a share (claim.sql); others leave it to the worker.
  add column safe bigint,
  add column seen bigint,
  add column seen_xid bigint,
  add column seen_at timestamptz,
  add column looked_at timestamptz;
drop index holdfast.lanes_identity;
create index lanes_identity on holdfast.lanes (kind_id, priority, coalesce(limit_key, ''), coalesce(share, '')) where closed_at is null;
drop index holdfast.lanes_queue;
create index lanes_plain on holdfast.lanes (queue, type) where limit_key is null and share is null;
create index lanes_shared on holdfast.lanes (queue, type) where limit_key is not null or share is not null;

-- All rows of a page are claimed at about the same time. With room for a second version of each, their new versions are written to
-- the log without what stays the same: 926 bytes a task instead of 1,070 to claim, finish and keep it.
alter table holdfast.tasks set (fillfactor = 50);

-- When lanes were tidied last, in seconds since 1970: a hint.
create sequence holdfast.lanes_tidied as bigint minvalue 0 start 0;

-- A lane as a claim sees it, for as long as the claim lasts.
create type holdfast.open_lane as (
  id bigint, queue text, type text, shared boolean, limit_ids bigint[], limits_known boolean, lease_s double precision,
  timeout_s double precision, attempts integer, rank double precision, served_at timestamptz, stored bigint, head bigint, safe bigint, sure bigint,
  renewed boolean, looked boolean, xid bigint, hint jsonb);

-- Replaced by functions with other results; all in one transaction with their successors.
drop function if exists holdfast.open_lanes(text[], text[], jsonb, timestamptz);
drop function if exists holdfast.reserve(bigint, bigint, bigint[], integer, timestamptz);
drop function if exists holdfast.take(bigint[], bigint[], integer[], double precision[], bigint, bigint, timestamptz);
drop function if exists holdfast.mark_served(bigint[], timestamptz);
drop function if exists holdfast.lane_for(text, text, smallint, text, jsonb);
drop function if exists holdfast.lane_in(jsonb, jsonb);
drop function if exists holdfast.lane_of_kind(bigint, smallint, text);

do $$
declare
  v_table text;
begin
  foreach v_table in array '{schedules,task_types,resting_keys}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
