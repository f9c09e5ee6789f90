-- What people look at and act on: figures by the minute, causes of errors, actions on many jobs, saved views, and
-- links that let somebody in once.

-- Searches walk ids downwards; failures are the rare rows that people ask for, so they have an index of their own.
create index history_failed_id on holdfast.history (id) where status = 'failed';
create index attempts_cause on holdfast.attempts (fingerprint, ended_at) where fingerprint is not null;

-- Figures are taken from what ended in a minute. Rows arrive nearly in that order, so a block range index finds them
-- and costs the hot path next to nothing. Tasks of graphs stay in `tasks` for a while: those have an ordinary one.
create index history_finished on holdfast.history using brin (finished_at) with (pages_per_range = 16);
create index tasks_finished on holdfast.tasks (finished_at) where finished_at is not null;

-- One row per minute, queue and type in which something ended; and the same by quarters of an hour, for longer views.
-- Waits and runs are counts by power of two of milliseconds: element n counts what took less than 2^(n-1) ms, and not
-- less than half of that.
create table holdfast.samples (
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

-- How much waited in each queue at that minute.
create table holdfast.depths (
  at timestamptz not null,
  queue text not null,
  ready bigint not null,
  running bigint not null,
  oldest_s double precision,
  primary key (at, queue)
);

-- What somebody decided about a cause of errors.
create table holdfast.causes (
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
  owner text,                                -- null: whoever's jobs
  started_by text not null,
  why text not null,
  total bigint not null,
  done bigint not null default 0,            -- restarted or cancelled by this action
  passed bigint not null default 0,          -- had changed in the meantime: left alone
  again bigint not null default 0,           -- failed again, as far as is known
  undone bigint not null default 0,
  wave integer not null default 0,
  ramp integer[] not null default '{10,100}', -- sizes of the first waves; then the rest
  per_s double precision check (per_s > 0),   -- at most so many a second; null: no limit
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
  wave integer,                              -- null: not yet its turn
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

-- Which job was made out of which by hand.
create table holdfast.reruns (
  new_id uuid primary key,
  old_id uuid not null,
  made_by text not null,
  at timestamptz not null
);
create index reruns_old on holdfast.reruns (old_id);

create table holdfast.login_links (
  hash bytea primary key,
  name text not null,
  role text not null,
  expires_at timestamptz not null,
  used_at timestamptz
);

-- Until when a queue stays paused; null: until somebody resumes it.
alter table holdfast.queues add column paused_until timestamptz;

do $$
declare
  v_table text;
begin
  foreach v_table in array '{samples,depths,causes,bulk_actions,bulk_jobs,saved_views,reruns,login_links}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
