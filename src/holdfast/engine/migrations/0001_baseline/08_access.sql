-- Access: service keys, login links, sessions, tickets for event streams, watched jobs and the audit log.

create table holdfast.service_keys (
  id uuid primary key,
  name text not null check (octet_length(name) between 1 and 200),
  prefix text not null,                      -- the part of the key that people see
  hash bytea not null unique check (octet_length(hash) = 32), -- SHA-256 of the key; the key itself is not stored
  scopes text[] not null check (cardinality(scopes) > 0),
  created_at timestamptz not null,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz
);
create index service_keys_prefix on holdfast.service_keys (prefix);

-- Links that sign a person in once.
create table holdfast.login_links (
  hash bytea primary key,
  name text not null,
  role text not null,
  expires_at timestamptz not null,
  used_at timestamptz
);

-- Who is signed in to the dashboard. The cookie of a session is random; only its hash is stored.
create table holdfast.dashboard_sessions (
  id uuid primary key,                       -- shown in lists; it opens nothing
  hash bytea not null unique check (octet_length(hash) = 32),
  login text not null check (login in ('key', 'settings_key', 'link')),
  key_id uuid check ((key_id is not null) = (login = 'key')), -- the service key that opened the session
  name text not null,
  role text not null,
  tenant text,
  address text,
  user_agent text,
  created_at timestamptz not null,
  last_seen_at timestamptz not null,
  expires_at timestamptz not null
);
create index dashboard_sessions_expiry on holdfast.dashboard_sessions (expires_at);

-- A ticket opens one event stream once; the pass that replaces it lets the same browser reconnect.
create table holdfast.stream_tickets (
  hash bytea primary key check (octet_length(hash) = 32),
  kind text not null check (kind in ('ticket', 'pass')),
  job_id uuid not null,
  issuer text not null check (issuer in ('user', 'key', 'settings_key')), -- what the caller showed for the ticket
  owner text check ((owner is not null) = (issuer = 'user')),
  key_id uuid check ((key_id is not null) = (issuer = 'key')),
  not_after timestamptz,                     -- when the token of the user expires
  expires_at timestamptz not null
);
create index stream_tickets_expiry on holdfast.stream_tickets (expires_at);

-- Jobs for which an API process has open event streams. Only their events are announced.
create unlogged table holdfast.watched_jobs (
  job_id uuid not null,
  watcher text not null,
  until timestamptz not null,
  primary key (job_id, watcher)
);
create index watched_jobs_until on holdfast.watched_jobs (until);

create table holdfast.audit_log (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  actor text not null,
  action text not null check (octet_length(action) between 1 and 200),
  target text,
  detail jsonb
);
create index audit_log_at on holdfast.audit_log (at);
