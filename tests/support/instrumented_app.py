"""Tasks whose runs are measured, traced and reported."""

from __future__ import annotations

import os
import time
from pathlib import Path

from opentelemetry import trace

from holdfast import Ctx, Reject, task


@task(queue="watched")
async def quick(x: int) -> int:
    with trace.get_tracer("app").start_as_current_span("inside quick"):
        return 2 * x


@task(queue="watched")
async def blocks() -> None:
    """Blocks the loop until it is allowed to go on."""
    record = Path(os.environ["RECORD"])
    with record.open("a") as file:
        file.write(f"{os.getpid()} blocking\n")
    while not record.with_name("go").exists():
        time.sleep(0.01)


@task(queue="watched", retries=0)
async def breaks() -> None:
    raise OSError("no bread")


@task(queue="watched")
async def passes_on(ctx: Ctx) -> None:
    await ctx.submit(quick(3), detached=True)


@task(queue="watched")
async def rejects() -> None:
    raise Reject("closed on Sundays")
