"""A listener that is stopped while a notification arrives must stop."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.engine.connection import Database
from holdfast.engine.listener import NotificationListener


async def test_a_listener_stop_during_a_ping(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of the API begin and end their listener with their first and last watcher: one that stops a
    ping later keeps the next watcher waiting.
    """
    listener = NotificationListener(db.url, db.settings, {"holdfast_events": lambda _: None})
    stopping = asyncio.get_running_loop().create_future()
    received = listener._on_pong

    def heard_and_stopped(*_: object) -> None:
        received()
        if not stopping.done():
            stopping.set_result(asyncio.create_task(listener.stop()))

    monkeypatch.setattr(listener, "_on_pong", heard_and_stopped)
    listener.start()
    stop = await stopping
    done, _ = await asyncio.wait({stop}, timeout=30)  # a ping would be 90 seconds
    assert done == {stop}
