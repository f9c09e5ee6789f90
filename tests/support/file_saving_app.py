"""A task that saves files slowly: a test can kill its process at any point between first byte and commit."""

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

FAST_RETRY_POLICY = RetryPolicy(retries=8, base=timedelta(milliseconds=10), cap=timedelta(milliseconds=20))
SMALL_BYTES, LARGE_BYTES = 40_000, 9_000_000  # one upload part, and more than one
PHASES = ("started", "uploading", "uploaded", "recorded", "saved")

_original_record = artifacts.record_artifact_upload


def record_phase(*fields: object) -> None:
    with Path(os.environ["RECORD"]).open("a") as file:
        file.write(" ".join(str(field) for field in (os.getpid(), *fields)) + "\n")


async def sleep_briefly() -> None:
    await asyncio.sleep(random.uniform(0, 0.03))


async def record_artifact_slowly(*args: Any, **kwargs: Any) -> Any:
    record_phase("uploaded", 0, 0)
    await sleep_briefly()
    saved = await _original_record(*args, **kwargs)
    record_phase("recorded", 0, 0)
    await sleep_briefly()
    return saved


if "RECORD" in os.environ:  # only in the processes that are killed, not in the tests that import this module
    artifacts.record_artifact_upload = record_artifact_slowly


def make_content(name: str, size: int) -> bytes:
    return hashlib.shake_128(name.encode()).digest(size)


async def generate_chunks(name: str, size: int, attempt: int) -> AsyncIterator[bytes]:
    content = make_content(f"{name} {attempt}", size)
    for number, start in enumerate(range(0, size, size // 8)):
        if number == 4:
            record_phase("uploading", name, attempt)
            await sleep_briefly()
        yield content[start : start + size // 8]


@task(queue="files", retry=FAST_RETRY_POLICY, lease=timedelta(seconds=20))
async def save_files(ctx: Ctx, name: str) -> int:
    record_phase("started", name, ctx.attempt)
    await ctx.save("small.bin", make_content(f"small {name} {ctx.attempt}", SMALL_BYTES))
    await ctx.save("large.bin", generate_chunks(name, LARGE_BYTES, ctx.attempt))
    record_phase("saved", name, ctx.attempt)
    await sleep_briefly()
    return ctx.attempt
