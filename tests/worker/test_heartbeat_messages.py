"""Messages that the heartbeat process keeps invisible: renewed, lost, let go, and left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta

import msgspec
import pytest

from holdfast import Client
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings
from holdfast.testing import eventually
from holdfast.worker.heartbeat_wire import HeldMessage, Kind, Sight, numbers
from holdfast.worker.messages.heartbeat import Messages

VT = 1.0


class Heard:
    """What the worker would have heard."""

    def __init__(self) -> None:
        self.sights: list[Sight] = []
        self.awake = True

    def __call__(self, kind: Kind, body: bytes) -> None:
        assert kind == b"V", body
        self.sights.append(msgspec.msgpack.decode(body, type=Sight))

    def of(self, what: Callable[[Sight], list[int]]) -> list[int]:
        return [number for sight in self.sights for number in what(sight)]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def keeping(url: Secret, settings: Settings, heard: Heard) -> AsyncGenerator[Messages]:
    messages = Messages(heard, lambda: heard.awake)
    task = asyncio.create_task(messages.keep_for_ever(url, settings))
    yield messages
    task.cancel()


@pytest.fixture
async def held(client: Client) -> bytes:
    """The second message of a queue, as the worker tells of it: number 7."""
    await client.queues.create("q")
    await client.queues.send_batch("q", [1, 2])
    found = await client.queues.read("q", qty=2, vt=timedelta(seconds=VT))
    message = HeldMessage(7, "q", found[1].receipt or "", VT, time.monotonic())
    return msgspec.msgpack.encode([message])


async def rests(conn: Connection) -> timedelta:
    """How long the message was hidden for, since it was read."""
    found: timedelta = await conn.fetchval("select vt - last_read_at from pgmq.q_q where msg_id = 2")
    return found


async def test_a_held_message_is_renewed_until_it_is_let_go(
    keeping: Messages, heard: Heard, held: bytes, conn: Connection
) -> None:
    keeping.hold(held)
    await eventually(lambda: len(heard.of(lambda s: s.kept)) >= 3)
    assert await rests(conn) > timedelta(seconds=VT)
    keeping.let_go(numbers([7]))
    await eventually(lambda: heard.of(lambda s: s.let_go) == [7])
    before = await rests(conn)
    await asyncio.sleep(VT)
    assert await rests(conn) == before
    assert heard.of(lambda s: s.lost) == []


async def test_a_message_that_somebody_else_has_read_is_lost(
    keeping: Messages, heard: Heard, held: bytes, conn: Connection
) -> None:
    keeping.hold(held)
    await eventually(lambda: heard.of(lambda s: s.kept))
    await conn.execute("select pgmq.set_vt('q', 2, -1); select pgmq.read('q', 60, 2)")
    await eventually(lambda: heard.of(lambda s: s.lost) == [7])
    assert keeping.leave() == []


async def test_letting_go_waits_for_a_renewal_on_its_way(
    keeping: Messages, heard: Heard, held: bytes, conn: Connection, second: Connection
) -> None:
    """Somebody has the row locked, so the renewal waits; a rest handed in now would be undone by it."""
    async with conn.transaction():
        await conn.execute("select from pgmq.q_q where msg_id = 2 for update")
        keeping.hold(held)
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        await eventually(lambda: second.fetchval(waiting))
        keeping.let_go(numbers([7]))
        assert heard.of(lambda s: s.let_go) == []
    await eventually(lambda: heard.of(lambda s: s.let_go) == [7])
    assert heard.of(lambda s: s.kept) == []


async def test_nothing_is_renewed_for_a_stopped_worker(
    keeping: Messages, heard: Heard, held: bytes, conn: Connection
) -> None:
    heard.awake = False
    keeping.hold(held)
    await asyncio.sleep(VT)
    assert await rests(conn) == timedelta(seconds=VT)
    heard.awake = True
    await eventually(lambda: heard.of(lambda s: s.kept))
