"""Maintenance of the engine in a database in which all systems are installed."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from all_systems import install_all_systems

from holdfast.engine.connection import Connection
from holdfast.testing import Clock


async def test_partitions_of_new_days_are_created_with_all_systems_installed(
    conn: Connection, clock: Clock
) -> None:
    await install_all_systems(conn)
    await clock.advance(timedelta(days=20))
    report = {"more": True}
    while report["more"]:
        report = msgspec.json.decode(await conn.fetchval("select holdfast.tick()"))
    assert await conn.fetchval("select count(*) from holdfast.list_maintenance_problems()") == 0
    newest = await conn.fetchval("select holdfast.now()::date + 1")
    name = f"holdfast.history_{newest:%Y%m%d}"
    assert await conn.fetchval("select to_regclass($1)", name) is not None
