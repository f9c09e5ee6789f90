"""Install through PgBouncer in transaction mode, and detect the pooler."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from pooler import pooler

from holdfast.engine import doctor, install, schema
from holdfast.engine.connection import open_connection
from holdfast.engine.schema import SchemaFiles, SchemaMigration
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(params=["transaction", "session"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pooled(empty_url: Secret, mode: str) -> Generator[Secret]:
    with pooler(empty_url, mode) as url:
        yield url


async def is_database_reachable(url: Secret, settings: Settings) -> bool:
    try:
        async with open_connection(url, settings):
            return True
    except DatabaseUnavailableError:
        return False


async def test_several_at_once_with_an_index_built_concurrently(
    pooled: Secret, empty_url: Secret, settings: Settings
) -> None:
    await wait_until(lambda: is_database_reachable(pooled, settings), what="the pooler answers")
    index = SchemaMigration(
        schema.load_packaged_schema().latest_version + 1,
        "index",
        "create index concurrently migrations_name on holdfast.migrations (name);",
        concurrently=True,
    )
    files = SchemaFiles(
        (*schema.load_packaged_schema().migrations, index), schema.load_packaged_schema().functions
    )
    await install.migrate_database(pooled, settings)  # a new schema would get the index in its transaction
    done = await asyncio.gather(*(install.migrate_database(pooled, settings, files=files) for _ in range(6)))
    assert [v for each in done for v in each.versions] == [index.version]
    assert (await install.read_schema_status(pooled, settings, files=files)).is_current
    async with open_connection(empty_url, settings) as connection:
        assert await connection.fetchval(
            "select indisvalid from pg_index where indexrelid = 'holdfast.migrations_name'::regclass"
        )
        await install.verify_schema(connection, files=files)


async def test_doctor_sees_through_it(pooled: Secret, mode: str, settings: Settings) -> None:
    await wait_until(lambda: is_database_reachable(pooled, settings), what="the pooler answers")
    await install.migrate_database(pooled, settings)
    (finding,) = [f for f in await doctor.run_doctor_checks(pooled, settings) if f.check == "pooler"]
    assert finding.level == ("warn" if mode == "transaction" else "ok")
    assert ("transaction pooler" in finding.text) is (mode == "transaction")
