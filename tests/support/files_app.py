"""A task that saves files, slowly enough to be killed anywhere between the first byte and the commit."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import Ctx, RetryPolicy, task
from holdfast.engine import artifacts

QUICK = RetryPolicy(retries=8, base=timedelta(milliseconds=10), cap=timedelta(milliseconds=20))
SMALL, LARGE = 40_000, 9_000_000  # one part, and more than one
PHASES = ("began", "uploading", "uploaded", "recorded", "saved")

_record = artifacts.record


def say(*words: object) -> None:
    with Path(os.environ["RECORD"]).open("a") as file:
        file.write(" ".join(str(word) for word in (os.getpid(), *words)) + "\n")


async def linger() -> None:
    await asyncio.sleep(random.uniform(0, 0.03))


async def slow_record(*args: Any, **kwargs: Any) -> Any:
    say("uploaded", 0, 0)
    await linger()
    saved = await _record(*args, **kwargs)
    say("recorded", 0, 0)
    await linger()
    return saved


if "RECORD" in os.environ:  # in the processes that are killed, not in the tests that import this file
    artifacts.record = slow_record


def content_of(name: str, size: int) -> bytes:
    return hashlib.shake_128(name.encode()).digest(size)


async def pieces(name: str, size: int, attempt: int) -> AsyncIterator[bytes]:
    content = content_of(f"{name} {attempt}", size)
    for number, begin in enumerate(range(0, size, size // 8)):
        if number == 4:
            say("uploading", name, attempt)
            await linger()
        yield content[begin : begin + size // 8]


@task(queue="files", retry=QUICK, lease=timedelta(seconds=20))
async def saves(ctx: Ctx, name: str) -> int:
    say("began", name, ctx.attempt)
    await ctx.save("small.bin", content_of(f"small {name} {ctx.attempt}", SMALL))
    await ctx.save("large.bin", pieces(name, LARGE, ctx.attempt))
    say("saved", name, ctx.attempt)
    await linger()
    return ctx.attempt
