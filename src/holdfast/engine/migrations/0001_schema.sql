-- What was applied, and by whom. The installer writes these two tables and nobody else reads them directly:
-- holdfast.installed() answers for them.
create table holdfast.migrations (
  version integer primary key check (version > 0),
  name text not null,
  checksum text not null,
  breaking boolean not null,
  applied_at timestamptz not null default pg_catalog.clock_timestamp(),
  applied_by text not null
);
comment on table holdfast.migrations is 'one row per applied migration; never edit';

create table holdfast.function_set (
  single boolean primary key default true check (single),
  checksum text not null,
  skipped text[] not null,
  roles text[] not null,
  applied_at timestamptz not null default pg_catalog.clock_timestamp(),
  applied_by text not null
);
comment on table holdfast.function_set is 'which functions are installed: one row, replaced whole';

-- The pattern for every table of this schema: row security enabled and forced, and one policy for the owner,
-- as which the functions run. Rights for other roles belong at the end of a file in functions/.
alter table holdfast.migrations enable row level security;
alter table holdfast.migrations force row level security;
create policy owner on holdfast.migrations to current_user using (true) with check (true);
alter table holdfast.function_set enable row level security;
alter table holdfast.function_set force row level security;
create policy owner on holdfast.function_set to current_user using (true) with check (true);

-- New functions are nobody's until they are granted. Only a role's default for the whole database can take the
-- right of PUBLIC away, so this is done for our own role and never for somebody's login role. The message
-- functions keep what their contract promises: anybody who is let into their schema may call them.
do $defaults$
begin
  if current_user = 'holdfast_owner' then
    alter default privileges revoke execute on functions from public;
    if pg_catalog.has_schema_privilege('pgmq', 'create') then
      alter default privileges in schema pgmq grant execute on functions to public;
    end if;
  end if;
end
$defaults$;
