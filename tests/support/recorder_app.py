"""Tasks for tests with real worker processes. Each run appends lines to the file named in RECORD."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

from holdfast import Ctx, RetryPolicy, task

QUICK = RetryPolicy(retries=4, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=100))


def record(*words: object) -> None:
    line = " ".join(str(word) for word in (os.getpid(), *words)) + "\n"
    with Path(os.environ["RECORD"]).open("a") as file:
        file.write(line)


@task(queue="record", retry=QUICK, lease=timedelta(seconds=2))
async def record_number(ctx: Ctx, number: int) -> int:
    record("record_number", number, ctx.attempt)
    return number


@task(queue="record", retry=QUICK, lease=timedelta(seconds=2))
async def wait_for_gate(ctx: Ctx, name: str) -> str:
    """Waits until the file named after it appears."""
    record("began", name, ctx.attempt)
    place = Path(os.environ["RECORD"]).with_name(name)
    while not place.exists():
        await asyncio.sleep(0.01)
    record("ended", name, ctx.attempt)
    return f"attempt {ctx.attempt}"


@task(queue="record", retry=QUICK, lease=timedelta(seconds=2))
async def block_event_loop(ctx: Ctx, seconds: float) -> str:
    """Blocks the whole event loop, as careless code does."""
    record("began", "block_event_loop", ctx.attempt)
    time.sleep(seconds)
    record("ended", "block_event_loop", ctx.attempt)
    return f"attempt {ctx.attempt}"


@task(queue="record", retry=QUICK, lease=timedelta(seconds=2))
def wait_in_thread(ctx: Ctx, name: str) -> str:
    record("began", name, ctx.attempt)
    place = Path(os.environ["RECORD"]).with_name(name)
    while not place.exists():
        ctx.check()
        time.sleep(0.01)
    return f"attempt {ctx.attempt}"
