"""The heartbeat process renews the visibility of messages, reports lost ones and confirms dropped ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import timedelta

import msgspec
import pytest

from holdfast import Client
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until
from holdfast.worker.heartbeat_protocol import (
    MESSAGES_RENEWED_FRAME_TYPE,
    LeasedMessage,
    MessageRenewals,
    encode_message_numbers,
)
from holdfast.worker.messages.renewal import MessageRenewer

VT_S = 1.0


class FakeWorker:
    """Collects what the renewer sends to its worker."""

    def __init__(self) -> None:
        self.renewed: list[int] = []
        self.lost: list[int] = []
        self.dropped: list[int] = []
        self.runs = True

    def receive(self, kind: bytes, body: bytes) -> None:
        assert kind == MESSAGES_RENEWED_FRAME_TYPE, body
        renewals = msgspec.msgpack.decode(body, type=MessageRenewals)
        self.renewed += renewals.renewed
        self.lost += renewals.lost
        self.dropped += renewals.dropped


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
async def renewer(url: Secret, settings: Settings, worker: FakeWorker) -> AsyncGenerator[MessageRenewer]:
    renewer = MessageRenewer(worker.receive, lambda: worker.runs)
    task = asyncio.create_task(renewer.renew_forever(url, settings))
    yield renewer
    task.cancel()


@pytest.fixture
async def encoded_message(client: Client) -> bytes:
    """The second message of a queue, encoded as message number 7."""
    await client.queues.create("q")
    await client.queues.send_batch("q", [1, 2])
    messages = await client.queues.read("q", qty=2, vt=timedelta(seconds=VT_S))
    message = LeasedMessage(7, "q", messages[1].receipt or "", VT_S, time.monotonic())
    return msgspec.msgpack.encode([message])


async def read_hidden_time(conn: Connection) -> timedelta:
    """Return for how long the message is hidden, counted from its last read."""
    hidden: timedelta = await conn.fetchval("select vt - last_read_at from pgmq.q_q where msg_id = 2")
    return hidden


async def test_a_message_is_renewed_until_it_is_dropped(
    renewer: MessageRenewer, worker: FakeWorker, encoded_message: bytes, conn: Connection
) -> None:
    renewer.handle_hold_frame(encoded_message)
    await wait_until(lambda: len(worker.renewed) >= 3)
    assert await read_hidden_time(conn) > timedelta(seconds=VT_S)
    renewer.handle_stop_renewing_frame(encode_message_numbers([7]))
    await wait_until(lambda: worker.dropped == [7])
    before = await read_hidden_time(conn)
    await asyncio.sleep(VT_S)
    assert await read_hidden_time(conn) == before
    assert worker.lost == []


async def test_a_message_that_another_reader_received_is_lost(
    renewer: MessageRenewer, worker: FakeWorker, encoded_message: bytes, conn: Connection
) -> None:
    renewer.handle_hold_frame(encoded_message)
    await wait_until(lambda: worker.renewed)
    await conn.execute("select pgmq.set_vt('q', 2, -1); select pgmq.read('q', 60, 2)")
    await wait_until(lambda: worker.lost == [7])
    assert renewer.take_all_messages() == []


async def test_a_drop_waits_for_a_renewal_in_flight(
    renewer: MessageRenewer, worker: FakeWorker, encoded_message: bytes, conn: Connection
) -> None:
    """The row is locked, so the renewal waits. A delay that is stored now would be undone by it."""
    async with conn.transaction():
        await conn.execute("select from pgmq.q_q where msg_id = 2 for update")
        renewer.handle_hold_frame(encoded_message)
        await wait_until(lambda: renewer._in_flight == {7})
        renewer.handle_stop_renewing_frame(encode_message_numbers([7]))
        assert worker.dropped == []
    await wait_until(lambda: worker.dropped == [7])
    assert worker.renewed == []


async def test_nothing_is_renewed_for_a_stopped_worker(
    renewer: MessageRenewer, worker: FakeWorker, encoded_message: bytes, conn: Connection
) -> None:
    worker.runs = False
    renewer.handle_hold_frame(encoded_message)
    await asyncio.sleep(VT_S)
    assert await read_hidden_time(conn) == timedelta(seconds=VT_S)
    worker.runs = True
    await wait_until(lambda: worker.renewed)
