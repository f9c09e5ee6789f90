-- Webhooks in both directions.

-- Outgoing: where to send events of jobs.
create table holdfast.webhooks (
  id uuid primary key,
  owner text,                                -- null: jobs of every owner
  url text not null check (octet_length(url) between 8 and 2000),
  events text[] not null check (cardinality(events) > 0),
  types text[],                              -- null: jobs of every type
  secret text not null,                      -- stored as it is, because signing needs it
  active boolean not null default true,
  created_at timestamptz not null,
  failing_since timestamptz,                 -- the first failed attempt since the last that succeeded
  failures integer not null default 0,
  last_error text,
  disabled_at timestamptz,
  disabled_reason text,
  expiry_notified_until timestamptz          -- the expiry of files up to this time was announced
);
create index webhooks_owner on holdfast.webhooks (owner);

-- Incoming: a caller that knows the secret may submit jobs of this type and no other.
create table holdfast.inbound_webhooks (
  name text primary key check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  job_type text not null check (octet_length(job_type) between 1 and 200),
  queue text not null default 'default' check (octet_length(queue) between 1 and 200),
  owner text,
  secret text not null,
  created_at timestamptz not null
);
