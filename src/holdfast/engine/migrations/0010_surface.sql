-- Batches have events of their own; webhooks that fail for long are switched off, and tell of files that are about to expire.

alter table holdfast.batches add column event_seq bigint not null default 0;

alter table holdfast.webhooks
  add column failing_since timestamptz,      -- the first attempt that failed since the last that did not
  add column failures integer not null default 0,
  add column last_error text,
  add column off_at timestamptz,             -- when it was switched off, and why
  add column off_why text,
  add column told_until timestamptz;         -- files that expire before this were told

-- They answer with more than they did.
drop function if exists holdfast.list_webhooks();
