"""Each of these fails, and says why."""

from __future__ import annotations

from datetime import timedelta

import pytest
import shop
from test_right import rows

from holdfast import Snooze, task
from holdfast.testing import Holdfast


@pytest.mark.asyncio
async def test_replay_detects_a_task_that_is_not_idempotent(hf: Holdfast) -> None:
    async def setup() -> None:
        await rows(hf, "truncate charges")

    async def charges() -> list[object]:
        return await rows(hf, "select number from charges")

    await hf.replay(shop.charge_carelessly(7), setup=setup, snapshot=charges)


@pytest.mark.asyncio
async def test_replay_detects_a_task_that_submits_twice(hf: Holdfast) -> None:
    await hf.replay(shop.charge_carelessly(7))


@pytest.mark.asyncio
async def test_assert_submitted_fails_without_a_match(hf: Holdfast) -> None:
    await shop.order("ann")
    hf.assert_submitted(shop.send, to="bob")


@pytest.mark.asyncio
async def test_assert_submitted_fails_with_another_count(hf: Holdfast) -> None:
    await shop.order("ann")
    hf.assert_submitted(shop.send, to="ann", count=2)


@pytest.mark.asyncio
async def test_drain_fails_after_max_attempts(hf: Holdfast) -> None:
    @task
    async def again() -> None:
        raise Snooze(timedelta(seconds=1))

    hf.use(again)
    await hf.client.submit(again())
    await hf.drain(until=timedelta(days=1), max_attempts=20)
