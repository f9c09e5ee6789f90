"""Sample tasks for `holdfast demo` and `holdfast dev`.

They need only Python, take a few seconds, report progress and leave a result behind.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from holdfast import Ctx, Graph, Message, RetryPolicy, consumer, task

SAMPLE_MESSAGE_QUEUE = "demo_messages"
PRIME_PORTION_COUNT = 10
MAX_JULIA_ITERATIONS = 96


@task(queue="demo", timeout=timedelta(minutes=2))
def draw_julia_set(ctx: Ctx, path: str, width: int = 480, height: int = 320) -> dict[str, int | str]:
    """Draw a Julia set row by row, with progress, and write it to a PNG file."""
    rows: list[bytes] = []
    for y, row in enumerate(_compute_julia_rows(width, height)):
        ctx.check()
        ctx.progress(y + 1, height, phase="draw", message=f"row {y + 1} of {height}")
        rows.append(row)
    png = _encode_png(width, height, rows)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(png)
    return {"path": path, "bytes": len(png)}


@task(queue="demo")
def count_primes(ctx: Ctx, below: int) -> int:
    """Count the prime numbers below `below`, and report progress after each tenth."""
    count = 0
    for portion in range(PRIME_PORTION_COUNT):
        ctx.check()
        low, high = below * portion // PRIME_PORTION_COUNT, below * (portion + 1) // PRIME_PORTION_COUNT
        count += sum(_is_prime(n) for n in range(low, high))
        ctx.progress(portion + 1, PRIME_PORTION_COUNT, phase="count", message=f"{count} primes below {high}")
    return count


@task(queue="demo", retry=RetryPolicy(retries=3, base=timedelta(milliseconds=200), cap=timedelta(seconds=1)))
async def fail_then_succeed(ctx: Ctx, failures: int) -> str:
    """Fail the first `failures` attempts with `ConnectionError`, then succeed."""
    for step in range(1, 5):
        ctx.progress(step, 5, phase="connect", message=f"attempt {ctx.attempt}, step {step}")
        await asyncio.sleep(0.05)
        if ctx.attempt <= failures and step == 3:
            raise ConnectionError(f"attempt {ctx.attempt} failed on purpose")
    return f"succeeded on attempt {ctx.attempt}"


@task(
    queue="demo",
    lease=timedelta(seconds=5),
    retry=RetryPolicy(base=timedelta(milliseconds=200), cap=timedelta(seconds=1)),
)
async def wait_seconds(ctx: Ctx, seconds: int) -> str:
    """Wait for `seconds` seconds and report progress every second.

    The lease is short: if the worker dies, another worker runs the task after a few seconds.
    """
    for second in range(1, seconds + 1):
        await asyncio.sleep(1)
        ctx.progress(second, seconds, phase="wait", message=f"second {second} of {seconds}")
    return f"took {seconds} s on attempt {ctx.attempt}"


@task(queue="demo", retry=RetryPolicy(retries=1, base=timedelta(seconds=2), cap=timedelta(seconds=2)))
def always_fail(message: str) -> None:
    """Raise `ValueError` in every attempt, as an example of a failing task."""
    raise ValueError(message)


@task(queue="demo")
def subtract(low: int, high: int) -> int:
    """Return `high` minus `low`, which are the results of other tasks of the same job."""
    return high - low


def build_prime_graph(low: int, high: int) -> Graph:
    """Build a job graph that counts the primes below two numbers in parallel and subtracts the counts."""
    graph = Graph("primes_between")
    lower = graph.add(count_primes(low), weight=low)
    upper = graph.add(count_primes(high), weight=high)
    graph.add(subtract(lower.result, upper.result), weight=1)
    return graph


@dataclass
class SampleMessage:
    """The body of a message in the sample message queue."""

    number: int
    text: str


@consumer(queue=SAMPLE_MESSAGE_QUEUE, vt=timedelta(seconds=30), max_reads=2, create=True)
async def read_sample_message(msg: Message[SampleMessage]) -> None:
    """Consume a sample message in 30 milliseconds. Messages without text become dead letters."""
    await asyncio.sleep(0.03)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def _compute_julia_rows(width: int, height: int) -> Iterator[bytes]:
    c = complex(-0.8, 0.156)
    for y in range(height):
        row = bytearray()
        for x in range(width):
            z = complex(3.2 * x / width - 1.6, 2.0 * y / height - 1.0)
            n = 0
            while abs(z) < 2 and n < MAX_JULIA_ITERATIONS:
                z = z * z + c
                n += 1
            row += bytes((min(255, n * 5), min(255, n * 3), 60 + n if n < MAX_JULIA_ITERATIONS else 20))
        yield bytes(row)


def _encode_png(width: int, height: int, rows: list[bytes]) -> bytes:
    def encode_png_chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n"
        + encode_png_chunk(b"IHDR", header)
        + encode_png_chunk(b"IDAT", pixels)
        + encode_png_chunk(b"IEND", b"")
    )
