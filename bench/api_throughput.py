"""Compare submits over HTTP with an ASGI application that stores a row with one INSERT."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from bench.http_clients import SERVICE_KEY, HttpConnection, create_user_token, read_cpu_seconds
from holdfast.model import Json
from holdfast.settings import Secret

CLOSED_LOOP_CONNECTIONS = 16
CLOSED_LOOP_REQUESTS = 250
ROUNDS = 3
USERS = 500  # nobody runs their jobs, and each submit counts those of its user


async def measure_throughput(base: str, pid: int, path: str, tokens: list[str], body: Json) -> float:
    """Send requests one after the other on 16 connections. Print rate and CPU time, and return the rate."""
    content = json.dumps(body).encode()

    async def send_requests(tokens: list[str]) -> None:
        connection = HttpConnection(base)
        for token in tokens:
            status, answer = await connection.request("POST", path, token, content)
            assert status == 202, answer

    warm_up = (tokens * 320)[: max(320, len(tokens))]  # each token at least once: it is verified then
    await asyncio.gather(
        *(send_requests(warm_up[n::CLOSED_LOOP_CONNECTIONS]) for n in range(CLOSED_LOOP_CONNECTIONS))
    )
    started_at, used = time.perf_counter(), read_cpu_seconds(pid)
    await asyncio.gather(
        *(
            send_requests(random.choices(tokens, k=CLOSED_LOOP_REQUESTS))
            for _ in range(CLOSED_LOOP_CONNECTIONS)
        )
    )
    count = CLOSED_LOOP_CONNECTIONS * CLOSED_LOOP_REQUESTS
    rate = count / (time.perf_counter() - started_at)
    each_ms = (read_cpu_seconds(pid) - used) / count * 1000
    print(f"         POST {path}: {rate:.0f}/s, CPU of the process {each_ms:.2f} ms each", flush=True)
    return rate


async def compare_submits(url: Secret, base: str, pid: int) -> None:
    """Compare submits over HTTP with the baseline by turns."""
    users = [create_user_token(f"user-{number}") for number in range(USERS)]
    rates: dict[str, list[float]] = {"baseline": [], "service": [], "user": []}
    print("submit in a closed loop, by turns with ASGI and one INSERT:")
    async with serve_baseline(url) as (baseline, baseline_pid):
        for _ in range(ROUNDS):
            rates["baseline"].append(
                await measure_throughput(baseline, baseline_pid, "/rows", ["-"], {"n": 1})
            )
            job = {"type": "noop", "queue": "bench", "args": {"n": 1}}
            rates["service"].append(await measure_throughput(base, pid, "/api/jobs", [SERVICE_KEY], job))
            start = {"type": "noop", "params": {"n": 1}}
            rates["user"].append(await measure_throughput(base, pid, "/api/jobs/start", users, start))
    floor = statistics.median(rates["baseline"])
    for kind in ("service", "user"):
        print(
            f"         as a {kind}: {statistics.median(rates[kind]) / floor:.2f} of the baseline (target 0.7)"
        )


@asynccontextmanager
async def serve_baseline(url: Secret) -> AsyncGenerator[tuple[str, int]]:
    """Start the baseline as a child process and yield its URL and its pid."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "bench.api_baseline:app", "--port", str(port), "--no-access-log",
        env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr
    try:
        while b"running on" not in (line := await process.stderr.readline()):
            if not line:
                raise RuntimeError("the baseline did not start")
        drain = asyncio.create_task(process.stderr.read())
        yield f"http://127.0.0.1:{port}", process.pid
        drain.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()
