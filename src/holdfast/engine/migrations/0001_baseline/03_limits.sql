-- Limits: how many tasks may run at once or start per second.

-- The rules, as they were set.
create table holdfast.limit_rules (
  name text primary key check (octet_length(name) between 1 and 200),
  queue text,                                -- null: every queue
  type text,                                 -- null: every type
  per_key boolean not null default false,
  max_running integer check (max_running >= 0),
  rate double precision check (rate > 0),    -- tasks per second
  burst double precision check (burst >= 1)
);

-- The counters of a rule: one per limit key, or one for the whole rule.
create table holdfast.limit_counters (
  id bigint generated always as identity,
  rule text not null references holdfast.limit_rules on update cascade on delete cascade,
  key text,
  running integer not null default 0 check (running >= 0),
  tokens double precision,
  refilled_at timestamptz,
  paused_until timestamptz,
  version bigint not null default 0,
  -- With the version in the key the newest version of a counter is found first, however many older ones a snapshot
  -- keeps (functions/leases/claim.sql).
  primary key (id, version)
) with (fillfactor = 50);
create unique index limit_counters_identity on holdfast.limit_counters (rule, coalesce(key, ''));

-- Limit keys that are paused until a time, whatever the rules allow.
create table holdfast.paused_limit_keys (
  key text primary key check (octet_length(key) between 1 and 1000),
  until timestamptz not null
) with (fillfactor = 50);

-- What an owner may use; null: no limit. The row with owner '' applies to every owner without a row.
create table holdfast.quotas (
  owner text primary key,
  bytes bigint check (bytes >= 0),
  files bigint check (files >= 0),
  operations bigint check (operations >= 0)  -- jobs per day, in UTC
);

-- What an owner uses. The lock on this row makes quotas exact.
create table holdfast.usage (
  owner text primary key,
  bytes bigint not null default 0 check (bytes >= 0),
  files bigint not null default 0 check (files >= 0),
  day date,
  operations bigint not null default 0
) with (fillfactor = 50);
