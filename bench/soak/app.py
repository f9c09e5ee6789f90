"""The tasks and consumers of the soak run: one for each way in which work runs, fails or waits."""

from __future__ import annotations

import asyncio
import hashlib
import random
from datetime import timedelta
from typing import Any

from holdfast import Ctx, Message, RetryPolicy, consumer, task

QUICK = RetryPolicy(retries=3, base=timedelta(milliseconds=100), cap=timedelta(seconds=1))


@task(queue="soak")
async def probe(number: int) -> int:
    return number


@task(queue="soak", retry=QUICK)
async def sometimes_fails(ctx: Ctx, number: int) -> int:
    ctx.progress(1, 2, phase="try", message=f"attempt {ctx.attempt}")
    if number % 10 == 0 and ctx.attempt == 1:
        raise OSError("a fault on purpose")
    return number


@task(queue="soak")
async def has_children(ctx: Ctx, count: int) -> None:
    for number in range(count):
        await ctx.submit(probe(number))


@task(queue="soak")
async def saves_a_file(ctx: Ctx, size: int) -> None:
    await ctx.save("noise.bin", random.randbytes(size), "application/octet-stream", ttl=timedelta(minutes=10))


@task(queue="soak")
def in_a_thread(ctx: Ctx, rounds: int) -> str:
    digest = b""
    for _ in range(rounds):
        ctx.check()
        digest = hashlib.sha256(digest).digest()
    return digest.hex()


@task(queue="soak", process=True, memory=500 * 2**20)
def in_a_child(number: int) -> int:
    return sum(bytearray(10 * number % 1_000_000))


@task(queue="limited")
async def limited(number: int) -> None:
    await asyncio.sleep(0.05)


@task(queue="soak")
async def waits_for_cancel(ctx: Ctx) -> None:
    await asyncio.sleep(600)


@consumer(queue="soak_letters", create=True, concurrency=5, max_reads=2)
async def read_letter(msg: Message[Any]) -> None:
    if msg.body["number"] % 50 == 0:
        raise ValueError("a dead letter on purpose")
