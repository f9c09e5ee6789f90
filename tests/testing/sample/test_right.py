"""What a user's tests look like; all of them pass."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest
import shop

from holdfast.errors import InvalidError
from holdfast.testing import Holdfast


async def rows(hf: Holdfast, query: str) -> list[object]:
    connection = await asyncpg.connect(hf.url)
    values = [row[0] for row in await connection.fetch(query)]
    await connection.close()
    return values


@pytest.mark.asyncio
async def test_an_order_sends_thanks(hf: Holdfast) -> None:
    await shop.order("ann")
    hf.assert_submitted(shop.send, to="ann")
    hf.assert_submitted(shop.send("ann", text="thanks"), count=1)
    hf.assert_submitted(shop.send, to="bob", count=0)
    drained = await hf.drain()
    assert [(ran.task, ran.outcome, ran.output) for ran in drained.attempts] == [
        ("send", "succeeded", "thanks to ann")
    ]
    assert await rows(hf, "select recipient from sent") == ["ann"]
    assert hf.submitted(shop.send)[0].status == "succeeded"


@pytest.mark.asyncio
async def test_blocking_client_uses_the_test_database(hf: Holdfast) -> None:
    job = await asyncio.to_thread(shop.client.blocking.submit, shop.send("bob"))
    hf.assert_submitted(shop.send("bob"))
    await hf.drain()
    assert await asyncio.to_thread(job.result) == "hello to bob"


@pytest.mark.asyncio
async def test_each_test_has_its_own_database(hf: Holdfast) -> None:
    assert hf.submitted() == []
    assert await rows(hf, "select recipient from sent") == []


@pytest.mark.asyncio
async def test_retries_wait_on_the_test_clock_only(hf: Holdfast) -> None:
    job = await hf.client.submit(shop.send("slow"))
    first = await hf.drain()
    assert [ran.outcome for ran in first.attempts] == ["failed"]
    assert isinstance(first.attempts[0].exception, ConnectionError)
    rest = await hf.drain(until=timedelta(hours=1))
    # Of this job only: `tidy` runs too when it is about to be three o'clock.
    assert [ran.outcome for ran in rest.attempts if ran.job_id == job.id] == ["failed", "succeeded"]
    assert rest.clock_advance == timedelta(hours=1)
    assert await job.result() == "hello to slow"


@pytest.mark.asyncio
async def test_run_submits_drains_and_returns_the_result(hf: Holdfast) -> None:
    assert await hf.run(shop.send("ann")) == "hello to ann"
    assert await hf.run(shop.plain(1)) == 2
    with pytest.raises(ValueError, match="no such address"):
        await hf.run(shop.send("never"))


@pytest.mark.asyncio
async def test_schedules_run_when_the_clock_advances(hf: Holdfast) -> None:
    drained = await hf.drain(until=timedelta(days=3))
    assert len(drained.of(shop.tidy)) == 3
    assert await rows(hf, "select recipient from sent") == ["tidied"] * 3


@pytest.mark.asyncio
async def test_state_can_be_replaced_by_a_test_double(hf: Holdfast) -> None:
    class Deaf(asyncpg.Pool):
        def __init__(self) -> None:
            self.records: list[object] = []

        async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
            self.records.extend(args)
            return ""

        def __del__(self) -> None: ...

    hf.state = deaf = Deaf()
    await hf.run(shop.send("ann"))
    assert deaf.records == ["ann"]


@pytest.mark.asyncio
async def test_drain_passes_messages_to_consumers(hf: Holdfast) -> None:
    await shop.client.queues.create("wishes")
    await shop.client.queues.send_batch("wishes", ["ann", "the moon"])
    drained = await hf.drain()
    assert [handled.outcome for handled in drained.messages] == ["archive", "dead_letter"]
    assert "too far" in str(drained.messages[1].error)
    assert [ran.output for ran in drained.of(shop.send)] == ["hello to ann"]


@pytest.mark.asyncio
async def test_plain_functions_cannot_be_replayed(hf: Holdfast) -> None:
    with pytest.raises(InvalidError, match="plain function"):
        await hf.replay(shop.plain(1))
