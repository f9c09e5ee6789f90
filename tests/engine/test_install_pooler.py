"""Through PgBouncer in transaction mode: installing, and noticing that it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from pooler import pooler

from holdfast.engine import checks, install, schema
from holdfast.engine.connection import connected
from holdfast.engine.schema import Migration, SchemaFiles
from holdfast.errors import DatabaseAwayError
from holdfast.settings import Secret, Settings
from holdfast.testing import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(params=["transaction", "session"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pooled(empty_url: Secret, mode: str) -> Generator[Secret]:
    with pooler(empty_url, mode) as url:
        yield url


async def answers(url: Secret, settings: Settings) -> bool:
    try:
        async with connected(url, settings):
            return True
    except DatabaseAwayError:
        return False


async def test_several_at_once_with_an_index_built_concurrently(
    pooled: Secret, empty_url: Secret, settings: Settings
) -> None:
    await eventually(lambda: answers(pooled, settings), what="the pooler answers")
    index = Migration(
        schema.packaged().latest + 1,
        "index",
        "create index concurrently migrations_name on holdfast.migrations (name);",
        concurrently=True,
    )
    files = SchemaFiles((*schema.packaged().migrations, index), schema.packaged().functions)
    done = await asyncio.gather(*(install.migrate(pooled, settings, files=files) for _ in range(6)))
    assert sorted(v for each in done for v in each.versions) == list(range(1, index.version + 1))
    assert (await install.status(pooled, settings, files=files)).current
    async with connected(empty_url, settings) as connection:
        assert await connection.fetchval(
            "select indisvalid from pg_index where indexrelid = 'holdfast.migrations_name'::regclass"
        )
        await install.verify(connection, files=files)


async def test_doctor_sees_through_it(pooled: Secret, mode: str, settings: Settings) -> None:
    await eventually(lambda: answers(pooled, settings), what="the pooler answers")
    await install.migrate(pooled, settings)
    (finding,) = [f for f in await checks.examine(pooled, settings) if f.check == "pooler"]
    assert finding.level == ("warn" if mode == "transaction" else "ok")
    assert ("transaction pooler" in finding.text) is (mode == "transaction")
