-- Schedules: jobs that are submitted at set times.
create table holdfast.schedules (
  name text primary key check (octet_length(name) between 1 and 200),
  cron text,                                 -- five fields; either this or every_s is set
  every_s double precision check (every_s between 1 and 315360000),
  timezone text not null default 'UTC',
  missed text not null default 'coalesce' check (missed in ('skip', 'coalesce', 'catch_up')),
  -- With catch_up: the maximum number of missed runs that are submitted.
  max_catch_up integer not null default 100 check (max_catch_up between 1 and 1000),
  job jsonb not null,                        -- the argument of `submit`
  owner text,
  source text,                               -- the application whose code declares it; null: created by a person
  anchor_at timestamptz not null,            -- intervals are counted from this time
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
