"""Tasks for the acceptance tests of the dashboard: one makes a file, one goes on until it is killed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast import Ctx, Reject, task

LEASE = timedelta(seconds=5)


@task(queue="pages", lease=LEASE)
async def print_page(ctx: Ctx, number: int) -> int:
    await asyncio.sleep(0.02)
    if number % 100 == 7:
        raise Reject(f"page {number} has no text")
    await ctx.save(f"page-{number}.txt", f"page {number}\n".encode() * 50, "text/plain")
    return number


@task(queue="holds", lease=timedelta(seconds=60))
async def hold(ctx: Ctx) -> None:
    ctx.progress(1, 2, phase="holding")
    await asyncio.sleep(600)
