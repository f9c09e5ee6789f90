"""The maintenance of the engine creates a partition of the history each day, also with systems installed."""

from __future__ import annotations

from datetime import timedelta

from holdfast.engine.connection import Database
from holdfast.settings import Secret, Settings
from holdfast.systems import bookmarks, exports, media, reports
from holdfast.testing import Clock


async def test_partitions_are_created_beside_the_triggers_of_systems(
    url: Secret, system_settings: Settings, clock: Clock
) -> None:
    """The owner of the history is not the owner of the systems' functions."""
    async with Database(url, system_settings) as db, db.connection() as connection:
        for system in (bookmarks, exports, media, reports):
            await system.install(connection)
        count = "select count(*) from pg_catalog.pg_inherits where inhparent = 'holdfast.history'::regclass"
        before = await connection.fetchval(count)
        await clock.advance(timedelta(days=30))
        for _ in range(8):  # each creates partitions of one table
            await connection.fetchval("select holdfast.tick()")
        assert await connection.fetchval(count) > before
