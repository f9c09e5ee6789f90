"""The tasks of the campaign. Each records when it begins and ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from campaign.records import Recorder
from holdfast import Ctx, RetryPolicy, task

QUICK_RETRY = RetryPolicy(retries=50, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=400))
LEASE = timedelta(seconds=2)

recorder = Recorder(Path(os.environ.get("CAMPAIGN_RECORDS", ".")))


@contextmanager
def record_execution(ctx: Ctx, key: str = "") -> Generator[None]:
    nonce = get_lease_nonce(ctx)
    recorder.write("begin", ctx.task_id, ctx.attempt, key, nonce)
    try:
        yield
    except asyncio.CancelledError:
        recorder.write("stop", ctx.task_id, ctx.attempt, nonce=nonce)
        raise
    recorder.write("end", ctx.task_id, ctx.attempt, nonce=nonce)


def get_lease_nonce(ctx: Ctx) -> int:
    """Return the nonce of this attempt's lease. The context hides it from users; the checker needs it."""
    lease = getattr(ctx, "lease", None)
    return 0 if lease is None else int(lease.nonce)


@task(queue="campaign", retry=QUICK_RETRY, lease=LEASE)
async def work(ctx: Ctx, number: int, ms: int = 10) -> int:
    """Sleep, report progress, and return the number."""
    with record_execution(ctx):
        ctx.progress(1, 2)
        await asyncio.sleep(ms / 1000)
    return number


@task(queue="campaign", retry=QUICK_RETRY, lease=LEASE)
async def keyed(ctx: Ctx, key: str, ms: int = 10) -> str:
    """Run under a limit per key."""
    with record_execution(ctx, key):
        await asyncio.sleep(ms / 1000)
    return key


@task(queue="campaign", retry=QUICK_RETRY, lease=LEASE)
async def step(ctx: Ctx, name: str, ms: int = 5) -> str:
    """A node of a graph."""
    with record_execution(ctx, name):
        await asyncio.sleep(ms / 1000)
    return name


@task(queue="campaign", retry=QUICK_RETRY, lease=LEASE)
async def batch_callback(ctx: Ctx, batch: int = 0) -> int:
    """Run as the callback of a batch."""
    with record_execution(ctx, f"callback {batch}"):
        pass
    return batch


@task(queue="poison", retry=QUICK_RETRY, lease=LEASE)
async def poison(ctx: Ctx, how: str) -> None:
    """Kill the process that runs this task."""
    recorder.write("begin", ctx.task_id, ctx.attempt, how, get_lease_nonce(ctx))
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), {"kill": 9, "segv": 11, "abort": 6}[how])
