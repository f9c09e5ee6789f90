"""The tasks of the recovery runs: default settings except for a lease of 2 seconds."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from campaign.app import LEASE_DURATION, record_execution
from holdfast import Call, Ctx, RetryPolicy, task

RETRY_AT_ONCE = RetryPolicy(retries=1000, base=timedelta(0), cap=timedelta(0))
PROCESS_TASK_SHARE = 10  # one task in ten runs in a child process
THREAD_TASK_SHARE = 5  # one task in five is a plain function


@task(queue="recovery", lease=LEASE_DURATION)
async def run_on_loop(ctx: Ctx, number: int, ms: int) -> int:
    with record_execution(ctx):
        await asyncio.sleep(ms / 1000)
    return number


@task(queue="recovery", lease=LEASE_DURATION)
def run_in_thread(ctx: Ctx, number: int, ms: int) -> int:
    with record_execution(ctx):
        time.sleep(ms / 1000)
    return number


@task(queue="recovery", lease=LEASE_DURATION, process=True)
async def run_in_child_process(ctx: Ctx, number: int, ms: int) -> int:
    with record_execution(ctx):
        await asyncio.sleep(ms / 1000)
    return number


@task(queue="recovery", lease=LEASE_DURATION, retry=RETRY_AT_ONCE)
async def fail_until(ctx: Ctx, attempt: int) -> int:
    """Fail until this attempt. Retries start at once."""
    if ctx.attempt < attempt:
        raise RuntimeError("retry at once")
    return ctx.attempt


def build_call(number: int, ms: int) -> Call[int]:
    if number % PROCESS_TASK_SHARE == 0:
        return run_in_child_process(number, ms)
    if number % THREAD_TASK_SHARE == 1:
        return run_in_thread(number, ms)
    return run_on_loop(number, ms)
