-- Installation records. Only the installer writes these two tables; everyone else reads them through
-- holdfast.get_installed_schema().
create table holdfast.migrations (
  version integer primary key check (version > 0),
  name text not null,
  checksum text not null,
  breaking boolean not null,                 -- code that does not know this migration must not run
  applied_at timestamptz not null default pg_catalog.clock_timestamp(),
  applied_by text not null                   -- version of the package
);
comment on table holdfast.migrations is 'one row per applied migration; never edit';

create table holdfast.function_set (
  single boolean primary key default true check (single), -- there is exactly one row
  checksum text not null,
  skipped text[] not null,
  roles text[] not null,
  applied_at timestamptz not null default pg_catalog.clock_timestamp(),
  applied_by text not null
);
comment on table holdfast.function_set is 'which functions are installed: one row, replaced whole';

-- A new function is callable by no other role until it is granted. Only the default privileges of a role for the whole
-- database can take the right away from PUBLIC, so this is done for holdfast_owner and never for a user's login role.
-- The message functions keep what the pgmq contract promises: whoever may use their schema may call them.
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
