"""Tasks for a worker inside the test's process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdfast import Ctx, Message, consumer, lifespan, task


@dataclass
class Counter:
    value: int = 0


@lifespan
async def counting() -> AsyncIterator[Counter]:
    yield Counter(40)


@task
async def add(ctx: Ctx[Counter], n: int) -> int:
    ctx.state.value += n
    return ctx.state.value


@task
async def double(x: int) -> int:
    return 2 * x


@task(process=True)
async def get_pid(ctx: Ctx[Counter]) -> tuple[int, int]:
    """The process of the task, and the state that its lifespan opened there."""
    return os.getpid(), ctx.state.value


@task
async def wait_forever(ctx: Ctx) -> None:
    await ctx.report(0, phase="started")
    await asyncio.Event().wait()


received: list[int] = []


@consumer(queue="numbers", create=True)
async def receive_number(msg: Message[int]) -> None:
    received.append(msg.body)
