-- Access: keys of services, tickets for event streams, watched jobs, the audit log, and webhooks in both directions.

create table holdfast.service_keys (
  id uuid primary key,
  name text not null check (octet_length(name) between 1 and 200),
  prefix text not null,                      -- what people see of the key
  hash bytea not null unique check (octet_length(hash) = 32), -- SHA-256 of the key, which nobody keeps
  scopes text[] not null check (cardinality(scopes) > 0),
  created_at timestamptz not null,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz
);
create index service_keys_prefix on holdfast.service_keys (prefix);

-- A ticket opens one stream once; the pass that replaces it lets the same browser come back.
create table holdfast.tickets (
  hash bytea primary key check (octet_length(hash) = 32),
  kind text not null check (kind in ('ticket', 'pass')),
  job_id uuid not null,
  owner text,
  expires_at timestamptz not null
);
create index tickets_expiry on holdfast.tickets (expires_at);

-- Jobs that an API process has streams for. Only their events are announced.
create unlogged table holdfast.watches (
  job_id uuid not null,
  watcher text not null,
  until timestamptz not null,
  primary key (job_id, watcher)
);
create index watches_until on holdfast.watches (until);

create table holdfast.audit (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  actor text not null,
  action text not null check (octet_length(action) between 1 and 200),
  target text,
  detail jsonb
);
create index audit_at on holdfast.audit (at);

create table holdfast.webhooks (
  id uuid primary key,
  owner text,                                -- null: jobs of everybody
  url text not null check (octet_length(url) between 8 and 2000),
  events text[] not null check (cardinality(events) > 0),
  types text[],                              -- null: jobs of every type
  secret text not null,                      -- signing needs it as it is
  active boolean not null default true,
  created_at timestamptz not null
);
create index webhooks_owner on holdfast.webhooks (owner);

-- Doors for messages from outside: who shows the secret may submit this type of job and no other.
create table holdfast.hooks (
  name text primary key check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  type text not null check (octet_length(type) between 1 and 200),
  queue text not null default 'default' check (octet_length(queue) between 1 and 200),
  owner text,
  secret text not null,
  created_at timestamptz not null
);

do $$
declare
  v_table text;
begin
  foreach v_table in array '{service_keys,tickets,watches,audit,webhooks,hooks}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
