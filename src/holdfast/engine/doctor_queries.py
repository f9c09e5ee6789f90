"""The statements of the checks in `engine.doctor`."""

from __future__ import annotations

READ_EXTENSION_VERSIONS = (
    "select extname, extversion from pg_catalog.pg_extension where extname = any ($1::text[])"
)

READ_RIGHTS = """
select
  current_user::text as role,
  o.rolname::text as owner,
  coalesce(o.rolsuper, false) as owner_is_superuser,
  coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage'), false) as may_enter,
  coalesce(pg_catalog.pg_has_role(o.oid, 'usage'), false)
    or coalesce((select pg_catalog.pg_has_role(r.oid, 'usage') from pg_catalog.pg_roles r
      where r.rolname = 'holdfast_worker'), false) as may_work,
  array(select rolname::text from pg_catalog.pg_roles where rolname = any ($1::text[])) as roles
from (select 1) one
left join pg_catalog.pg_namespace n on n.nspname = 'holdfast'
left join pg_catalog.pg_roles o on o.oid = n.nspowner
"""

LIST_OLD_SNAPSHOTS = """
select what, fix from (
  select 1 as rank, pg_catalog.format('process %s (%s), in a transaction for %s', pid, usename,
      pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - xact_start)) as what,
    pg_catalog.format('End that transaction: select pg_terminate_backend(%s)', pid) as fix
  from pg_catalog.pg_stat_activity
  where backend_xmin is not null and xact_start < pg_catalog.clock_timestamp() - $1::interval
    and backend_type = 'client backend'
  union all
  select 2, pg_catalog.format('the prepared transaction %s', gid),
    pg_catalog.format('Finish it: rollback prepared %L', gid)
  from pg_catalog.pg_prepared_xacts where prepared < pg_catalog.clock_timestamp() - $1::interval
  union all
  select 3, pg_catalog.format('the unused replication slot %s', slot_name),
    pg_catalog.format('If nobody needs it: select pg_drop_replication_slot(%L)', slot_name)
  from pg_catalog.pg_replication_slots where not active
) blockers order by rank limit 5
"""

COUNT_FREE_CONNECTIONS = """
select
  pg_catalog.current_setting('max_connections')::integer
    - pg_catalog.current_setting('superuser_reserved_connections')::integer
    - coalesce(pg_catalog.current_setting('reserved_connections', true)::integer, 0) as allowed,
  (select pg_catalog.sum(numbackends)::integer from pg_catalog.pg_stat_database) as used
"""

FIND_PROBLEM_LIST = "select pg_catalog.to_regprocedure('holdfast.list_maintenance_problems(integer)')::text"
LIST_MAINTENANCE_PROBLEMS = "select kind, subject, message from holdfast.list_maintenance_problems(100)"
