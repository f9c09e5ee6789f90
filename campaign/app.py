"""The tasks that fault runs submit. Each task records its start and its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from campaign.records import Recorder
from holdfast import Ctx, RetryPolicy, task

QUICK_RETRY_POLICY = RetryPolicy(retries=50, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=400))
LEASE_DURATION = timedelta(seconds=2)

recorder = Recorder(Path(os.environ.get("CAMPAIGN_RECORDS", ".")))


@contextmanager
def record_execution(ctx: Ctx, key: str = "") -> Generator[None]:
    """Record the start and the end of an attempt, or that it was cancelled."""
    nonce = get_lease_nonce(ctx)
    recorder.write_line("begin", ctx.task_id, ctx.attempt, key, nonce)
    try:
        yield
    except asyncio.CancelledError:
        recorder.write_line("stop", ctx.task_id, ctx.attempt, nonce=nonce)
        raise
    recorder.write_line("end", ctx.task_id, ctx.attempt, nonce=nonce)


def get_lease_nonce(ctx: Ctx) -> int:
    """Return the nonce of the lease of an attempt, for the checker. The context does not publish it."""
    lease = getattr(ctx, "lease", None)
    return 0 if lease is None else int(lease.nonce)


@task(queue="campaign", retry=QUICK_RETRY_POLICY, lease=LEASE_DURATION)
async def work(ctx: Ctx, number: int, ms: int = 10) -> int:
    """Sleep, report progress, and return the number."""
    with record_execution(ctx):
        ctx.progress(1, 2)
        await asyncio.sleep(ms / 1000)
    return number


@task(queue="campaign", retry=QUICK_RETRY_POLICY, lease=LEASE_DURATION)
async def keyed(ctx: Ctx, key: str, ms: int = 10) -> str:
    """Sleep. The campaign sets a limit for each key of this task."""
    with record_execution(ctx, key):
        await asyncio.sleep(ms / 1000)
    return key


@task(queue="campaign", retry=QUICK_RETRY_POLICY, lease=LEASE_DURATION)
async def step(ctx: Ctx, name: str, ms: int = 5) -> str:
    """Sleep. Runs as a node of a graph."""
    with record_execution(ctx, name):
        await asyncio.sleep(ms / 1000)
    return name


@task(queue="campaign", retry=QUICK_RETRY_POLICY, lease=LEASE_DURATION)
async def batch_callback(ctx: Ctx, batch: int = 0) -> int:
    """Run as the callback of a batch."""
    with record_execution(ctx, f"callback {batch}"):
        pass
    return batch


@task(queue="poison", retry=QUICK_RETRY_POLICY, lease=LEASE_DURATION)
async def poison(ctx: Ctx, how: str) -> None:
    """Kill the process that runs this task."""
    recorder.write_line("begin", ctx.task_id, ctx.attempt, how, get_lease_nonce(ctx))
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), {"kill": 9, "segv": 11, "abort": 6}[how])
