"""The tasks of the campaign. Each writes down when it begins and ends, and nothing else matters about it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from campaign.records import Recorder
from holdfast import Ctx, RetryPolicy, task

QUICK = RetryPolicy(retries=50, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=400))
LEASE = timedelta(seconds=2)

recorder = Recorder(Path(os.environ.get("CAMPAIGN_RECORDS", ".")))


@contextmanager
def recorded(ctx: Ctx, key: str = "") -> Generator[None]:
    nonce = nonce_of(ctx)
    recorder.write("begin", ctx.task_id, ctx.attempt, key, nonce)
    try:
        yield
    except asyncio.CancelledError:
        recorder.write("stop", ctx.task_id, ctx.attempt, nonce=nonce)
        raise
    recorder.write("end", ctx.task_id, ctx.attempt, nonce=nonce)


def nonce_of(ctx: Ctx) -> int:
    """Of the lease this attempt runs under; not for users, but a judge wants to know."""
    lease = getattr(ctx, "lease", None)
    return 0 if lease is None else int(lease.nonce)


@task(queue="campaign", retry=QUICK, lease=LEASE)
async def work(ctx: Ctx, number: int, ms: int = 10) -> int:
    """Takes a while, reports progress, and answers with its number."""
    with recorded(ctx):
        ctx.progress(1, 2)
        await asyncio.sleep(ms / 1000)
    return number


@task(queue="campaign", retry=QUICK, lease=LEASE)
async def keyed(ctx: Ctx, key: str, ms: int = 10) -> str:
    """Runs under a limit per key."""
    with recorded(ctx, key):
        await asyncio.sleep(ms / 1000)
    return key


@task(queue="campaign", retry=QUICK, lease=LEASE)
async def step(ctx: Ctx, name: str, ms: int = 5) -> str:
    """A node of a graph."""
    with recorded(ctx, name):
        await asyncio.sleep(ms / 1000)
    return name


@task(queue="campaign", retry=QUICK, lease=LEASE)
async def called_back(ctx: Ctx, batch: int = 0) -> int:
    """What a batch calls when its last job has ended."""
    with recorded(ctx, f"callback {batch}"):
        pass
    return batch


@task(queue="poison", retry=QUICK, lease=LEASE)
async def poison(ctx: Ctx, how: str) -> None:
    """Takes its process along."""
    recorder.write("begin", ctx.task_id, ctx.attempt, how, nonce_of(ctx))
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), {"kill": 9, "segv": 11, "abort": 6}[how])
