"""Samples for `holdfast demo` and for a first look: tasks that draw, count and stumble, a graph, and letters.

They need nothing but Python, take a few seconds, report progress and leave something to look at.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from holdfast.definitions.consumers import consumer
from holdfast.definitions.graphs import Graph
from holdfast.definitions.tasks import Ctx, RetryPolicy, task
from holdfast.model import Message

LETTERS = "demo_letters"


@task(queue="demo", timeout=timedelta(minutes=2))
def draw(ctx: Ctx, path: str, width: int = 480, height: int = 320) -> dict[str, int | str]:
    """A Julia set as a PNG file, row by row, so that there is progress to see."""
    rows: list[bytes] = []
    for y, row in enumerate(_julia_rows(width, height)):
        ctx.check()
        ctx.progress(y + 1, height, phase="draw", message=f"row {y + 1} of {height}")
        rows.append(row)
    png = _png(width, height, rows)
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(png)
    return {"path": path, "bytes": len(png)}


@task(queue="demo")
def count_primes(ctx: Ctx, below: int) -> int:
    """How many primes there are, in ten portions."""
    found = 0
    for portion in range(10):
        ctx.check()
        low, high = below * portion // 10, below * (portion + 1) // 10
        found += sum(_is_prime(n) for n in range(low, high))
        ctx.progress(portion + 1, 10, phase="count", message=f"{found} primes below {high}")
    return found


@task(queue="demo", retry=RetryPolicy(retries=3, base=timedelta(milliseconds=200), cap=timedelta(seconds=1)))
async def stumble(ctx: Ctx, falls: int) -> str:
    """Fails the first `falls` attempts, as the network does, and then gets there."""
    for step in range(1, 5):
        ctx.progress(step, 5, phase="walk", message=f"attempt {ctx.attempt}, step {step}")
        await asyncio.sleep(0.05)
        if ctx.attempt <= falls and step == 3:
            raise ConnectionError(f"fell on attempt {ctx.attempt}")
    return f"arrived on attempt {ctx.attempt}"


@task(
    queue="demo",
    lease=timedelta(seconds=5),
    retry=RetryPolicy(base=timedelta(milliseconds=200), cap=timedelta(seconds=1)),
)
async def slow(ctx: Ctx, seconds: int) -> str:
    """Takes its time. Its lease is short: when its worker dies, another one has it after a few seconds."""
    for second in range(1, seconds + 1):
        await asyncio.sleep(1)
        ctx.progress(second, seconds, phase="wait", message=f"second {second} of {seconds}")
    return f"took {seconds} s on attempt {ctx.attempt}"


@task(queue="demo", retry=RetryPolicy(retries=1, base=timedelta(seconds=2), cap=timedelta(seconds=2)))
def broken(why: str) -> None:
    """Never succeeds, so that there is an error to look at."""
    raise ValueError(why)


@task(queue="demo")
def between(low: int, high: int) -> int:
    """What lies between two counts; in the demonstration both come from other tasks of the same job."""
    return high - low


def primes_between(low: int, high: int) -> Graph:
    """Two counts side by side, then their difference."""
    graph = Graph("primes_between")
    lower = graph.add(count_primes(low), weight=low)
    upper = graph.add(count_primes(high), weight=high)
    graph.add(between(lower.result, upper.result), weight=1)
    return graph


@dataclass
class Letter:
    number: int
    text: str


@consumer(queue=LETTERS, vt=timedelta(seconds=30), max_reads=2, create=True)
async def read_letter(msg: Message[Letter]) -> None:
    """Takes a moment for each. A letter without text cannot be read and goes to the dead letters."""
    await asyncio.sleep(0.03)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def _julia_rows(width: int, height: int) -> Iterator[bytes]:
    c = complex(-0.8, 0.156)
    for y in range(height):
        row = bytearray()
        for x in range(width):
            z = complex(3.2 * x / width - 1.6, 2.0 * y / height - 1.0)
            n = 0
            while abs(z) < 2 and n < 96:
                z = z * z + c
                n += 1
            row += bytes((min(255, n * 5), min(255, n * 3), 60 + n if n < 96 else 20))
        yield bytes(row)


def _png(width: int, height: int, rows: list[bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
