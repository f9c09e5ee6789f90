"""Tasks for a rolling upgrade. Both versions run this file; each run writes a line that names its version."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from holdfast import Ctx, Message, RetryPolicy, consumer, schedule, task

QUICK = RetryPolicy(retries=3, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=100))


def record(kind: str, number: int, attempt: int) -> None:
    line = f"{os.environ['RUN_BY']} {kind} {number} {attempt}\n"
    descriptor = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line.encode())  # one write of a short line is never torn
    os.close(descriptor)


@task(queue="upgraded", retry=QUICK)
async def sometimes_fails(ctx: Ctx, number: int) -> int:
    record("single", number, ctx.attempt)
    ctx.progress(1, 1, phase="done")
    if number % 10 == 0 and ctx.attempt == 1:
        raise OSError("a fault on purpose")
    return number


@task(queue="upgraded", retry=QUICK)
def in_a_thread(ctx: Ctx, number: int) -> int:
    record("thread", number, ctx.attempt)
    time.sleep(0.02)
    return number


@task(queue="upgraded", retry=QUICK)
async def has_a_child(ctx: Ctx, number: int) -> None:
    record("parent", number, ctx.attempt)
    await ctx.submit(is_a_child(number))


@task(queue="upgraded", retry=QUICK)
async def is_a_child(ctx: Ctx, number: int) -> None:
    record("child", number, ctx.attempt)


@task(queue="upgraded", retry=QUICK)
async def ticks(ctx: Ctx) -> None:
    record("tick", 0, ctx.attempt)


@consumer(queue="upgraded_letters", create=True)
async def read_letter(msg: Message[Any]) -> None:
    record("letter", msg.body["number"], msg.reads)


every_second = schedule(ticks(), name="ticks", every=timedelta(seconds=1))
