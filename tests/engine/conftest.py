"""What several engine tests compare: everything that a schema consists of, as sorted lines of text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import asyncpg
import pytest
from wakeup_listener import WakeupListener

from holdfast.settings import Secret

CatalogReader = Callable[[Secret], Awaitable[list[str]]]

_READ_CATALOG = """
with ours as (select oid, nspname from pg_namespace where nspname in ('holdfast', 'pgmq', 'pgmq_public'))
select line from (
  select format('schema %s %s %s %s', n.nspname, pg_get_userbyid(n.nspowner),
      obj_description(n.oid, 'pg_namespace'),
      (select array_agg(a::text order by a::text) from unnest(n.nspacl) a)) as line
    from pg_namespace n join ours using (oid)
  union all
  select format('relation %s.%s kind=%s owner=%s acl=%s options=%s rls=%s/%s persistence=%s',
      nspname, relname, relkind, pg_get_userbyid(relowner),
      (select array_agg(a::text order by a::text) from unnest(relacl) a),
      reloptions, relrowsecurity, relforcerowsecurity, relpersistence)
    from pg_class c join ours on ours.oid = relnamespace where relkind <> 't'
  union all
  select format('column %s %s %s %s null=%s default=%s identity=%s generated=%s',
      attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), not attnotnull,
      pg_get_expr(adbin, adrelid), attidentity, attgenerated)
    from pg_attribute a join pg_class c on c.oid = attrelid join ours on ours.oid = relnamespace
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where attnum > 0 and relkind in ('r', 'p', 'v', 'm', 'c')
  union all
  select format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(k.oid))
    from pg_constraint k join ours on ours.oid = connamespace
  union all
  select format('index %s valid=%s', pg_get_indexdef(indexrelid), indisvalid)
    from pg_index i join pg_class c on c.oid = indexrelid join ours on ours.oid = relnamespace
  union all
  select format('policy %s %s %s %s %s %s', polrelid::regclass, polname, polcmd, polroles::regrole[],
      pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
    from pg_policy p join pg_class c on c.oid = polrelid join ours on ours.oid = relnamespace
  union all
  select format('function %s owner=%s acl=%s %s', p.oid::regprocedure, pg_get_userbyid(proowner),
      (select array_agg(a::text order by a::text) from unnest(proacl) a),
      case when prokind in ('f', 'p') then pg_get_functiondef(p.oid) end)
    from pg_proc p join ours on ours.oid = pronamespace
  union all
  select format('trigger %s', pg_get_triggerdef(t.oid))
    from pg_trigger t join pg_class c on c.oid = tgrelid join ours on ours.oid = relnamespace
    where not tgisinternal
  union all
  select format('type %s kind=%s owner=%s', t.oid::regtype, typtype, pg_get_userbyid(typowner))
    from pg_type t join ours on ours.oid = typnamespace
  union all
  select format('default %s %s %s %s', pg_get_userbyid(defaclrole), defaclnamespace::regnamespace,
      defaclobjtype, (select array_agg(a::text order by a::text) from unnest(defaclacl) a))
    from pg_default_acl
  union all
  select format('comment %s %s', objoid::regclass, description) from pg_description
    where classoid = 'pg_class'::regclass
      and objoid in (select c.oid from pg_class c join ours on ours.oid = relnamespace)
) lines order by line collate "C"
"""


@pytest.fixture(scope="session")
def catalogue() -> CatalogReader:
    async def read(url: Secret) -> list[str]:
        connection = await asyncpg.connect(url.reveal())
        try:
            lines = [record["line"] for record in await connection.fetch(_READ_CATALOG)]
        finally:
            await connection.close()
        return lines

    return read


@pytest.fixture
async def wakeups(url: Secret) -> AsyncGenerator[WakeupListener]:
    connection = await asyncpg.connect(url.reveal())
    listener = WakeupListener(connection)
    await listener.listen()
    yield listener
    await connection.close()
