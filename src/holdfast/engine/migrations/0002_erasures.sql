-- Erasing an owner: which tables and queues of systems have rows of owners, and the requests to erase one.

-- Tables outside this schema that have rows of owners. Rows are deleted in the order of `position`.
create table holdfast.owner_tables (
  relation text primary key,                 -- with its schema, quoted
  owner_column text not null,
  position bigint generated always as identity
);
comment on table holdfast.owner_tables is 'tables of systems that have rows of owners; erasing an owner empties them';

-- Message queues whose messages name an owner.
create table holdfast.owner_queues (
  queue_name text primary key,
  owner_field text not null                  -- the field of the message that names the owner
);
comment on table holdfast.owner_queues is 'message queues whose messages name an owner';

-- One row per request. Who asked, when, and how many rows were deleted are kept as long as the audit log.
create table holdfast.erasures (
  id uuid primary key,
  owner text not null check (octet_length(owner) between 1 and 1000),
  requested_by text not null,
  requested_at timestamptz not null,
  quiet_until timestamptz not null,          -- work that was interrupted may still write until then
  finished_at timestamptz,
  deleted jsonb not null default '{}'        -- numbers of deleted rows, by kind
);
create unique index erasures_unfinished on holdfast.erasures (owner) where finished_at is null;
create index erasures_owner on holdfast.erasures (owner, requested_at desc);
comment on table holdfast.erasures is 'requests to erase everything of an owner, with their progress';

do $$
declare
  v_table text;
begin
  foreach v_table in array '{owner_tables,owner_queues,erasures}'::text[] loop
    execute format('alter table holdfast.%I enable row level security', v_table);
    execute format('alter table holdfast.%I force row level security', v_table);
    execute format('create policy owner_all on holdfast.%I to current_user using (true) with check (true)', v_table);
    execute format('revoke all on holdfast.%I from public', v_table);
  end loop;
end $$;
