from __future__ import annotations

import asyncio

import pytest

from holdfast.engine.connection import Connection, Database
from holdfast.testing import eventually
from holdfast.worker import duties
from holdfast.worker.duties import Upkeep


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "BUSY_SECONDS", 0.05)


async def partitions(connection: Connection) -> int:
    count: int = await connection.fetchval(
        "select count(*) from pg_inherits where inhparent = 'holdfast.history'::regclass"
    )
    return count


@pytest.mark.usefixtures("hasty")
async def test_a_busy_worker_keeps_house(db: Database, conn: Connection) -> None:
    before = await partitions(conn)
    upkeep = Upkeep(db, lambda: True)
    upkeep.start()

    async def made() -> bool:
        return await partitions(conn) > before

    await eventually(made)
    await upkeep.stop()


@pytest.mark.usefixtures("hasty")
async def test_an_idle_one_leaves_it_for_later(db: Database, conn: Connection) -> None:
    asked = asyncio.Event()

    def idle() -> bool:
        upkeep.rounds += 1  # type: ignore[attr-defined]
        if upkeep.rounds > 30:  # type: ignore[attr-defined]
            asked.set()
        return False

    before = await partitions(conn)
    upkeep = Upkeep(db, idle)
    upkeep.rounds = 0  # type: ignore[attr-defined]
    upkeep.start()
    await asyncio.wait_for(asked.wait(), 20)
    await upkeep.stop()
    assert await partitions(conn) == before
