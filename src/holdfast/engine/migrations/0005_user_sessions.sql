-- Sessions of users: who is signed in to the pages of systems. Like those of the dashboard, they are rows, so signing
-- out ends them on every process.

-- The cookie of a session is random; only its hash is stored. `claims` are those of the token that opened the session.
create table holdfast.user_sessions (
  id uuid primary key,
  hash bytea not null unique check (octet_length(hash) = 32),
  owner text not null check (octet_length(owner) between 1 and 1000),
  claims jsonb not null,
  address text,
  user_agent text,
  created_at timestamptz not null,
  expires_at timestamptz not null
);
create index user_sessions_owner on holdfast.user_sessions (owner, created_at);
create index user_sessions_expiry on holdfast.user_sessions (expires_at);
comment on table holdfast.user_sessions is 'users who are signed in to the pages of systems, by the hash of their cookie';

alter table holdfast.user_sessions enable row level security;
alter table holdfast.user_sessions force row level security;
create policy owner_all on holdfast.user_sessions to current_user using (true) with check (true);
revoke all on holdfast.user_sessions from public;
