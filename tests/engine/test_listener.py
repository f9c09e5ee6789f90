"""A listener that is stopped while a notification arrives must stop."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.engine.connection import Database
from holdfast.engine.listener import TASK_CHANNEL, NotificationListener
from holdfast.testing import wait_until


async def test_a_listener_stop_during_a_ping(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of the API begin and end their listener with their first and last watcher: one that stops a
    ping later keeps the next watcher waiting.
    """
    listener = NotificationListener(db.url, db.settings, {"holdfast_events": lambda _: None})
    stopping = asyncio.get_running_loop().create_future()
    received = listener._on_own_notification

    def heard_and_stopped(connection: object, pid: int, channel: str, payload: object) -> None:
        received(connection, pid, channel, payload)
        if not stopping.done():
            stopping.set_result(asyncio.create_task(listener.stop()))

    monkeypatch.setattr(listener, "_on_own_notification", heard_and_stopped)
    listener.start()
    stop = await stopping
    done, _ = await asyncio.wait({stop}, timeout=30)  # a ping would be 90 seconds
    assert done == {stop}


async def test_a_listener_has_a_channel_of_its_own(db: Database) -> None:
    received: list[str] = []
    listener = NotificationListener(db.url, db.settings, {TASK_CHANNEL: received.append})
    listener.start()
    await wait_until(lambda: listener.is_healthy, what="the listener")
    received.clear()  # "": it may have missed some
    async with db.connection() as connection:
        await connection.execute(
            "select pg_notify($1, 'for you'), pg_notify('holdfast', 'for all')", listener.own_channel
        )
    await wait_until(lambda: len(received) >= 2, what="two notifications")
    await listener.stop()
    assert received == ["for you", "for all"]
