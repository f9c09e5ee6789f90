"""The heartbeat's thread ticks slowly while the worker is idle, and at once when an attempt starts."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from holdfast.worker import heartbeat_ticks
from holdfast.worker.heartbeat_ticks import HEARTBEAT_TICK_INTERVAL_S, IDLE_TICK_INTERVAL_S, TickPacer


def test_the_interval_depends_on_what_the_worker_holds() -> None:
    held: list[str] = []
    ticks = TickPacer(lambda: bool(held))
    assert ticks.interval_s == IDLE_TICK_INTERVAL_S
    held.append("a lease")
    assert ticks.interval_s == HEARTBEAT_TICK_INTERVAL_S


async def test_a_start_from_another_thread_ends_the_wait_of_an_idle_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat_ticks, "IDLE_TICK_INTERVAL_S", 600.0)
    ticks = TickPacer(lambda: False)
    waiting = asyncio.create_task(ticks.wait_for_next_tick())
    await asyncio.sleep(0)
    threading.Thread(target=ticks.end_long_wait).start()
    async with asyncio.timeout(60):
        await waiting


async def test_a_busy_worker_ticks_at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims of a busy worker come by the hundred: they must not make the thread tick each time."""
    monkeypatch.setattr(heartbeat_ticks, "HEARTBEAT_TICK_INTERVAL_S", 0.3)
    ticks = TickPacer(lambda: True)
    started_at = time.monotonic()
    waiting = asyncio.create_task(ticks.wait_for_next_tick())
    await asyncio.sleep(0)
    ticks.end_long_wait()
    await waiting
    assert time.monotonic() - started_at >= 0.29
