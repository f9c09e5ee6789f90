"""Benchmark of files: memory and time to save and read 1 GiB, to send a ZIP of 1,000 files, and to sweep.

    python bench/files.py [--small]

Each measurement runs in a child process with its own database. Memory is the growth of the child's resident
set at its peak (VmHWM minus VmRSS before), so it includes Python, buffers and the object-store library.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvicorn
from starlette.types import ASGIApp

from holdfast import Client, load_settings
from holdfast.client import open_client_database
from holdfast.engine import embedded, scratch
from holdfast.engine.artifacts import put_artifact_retention_rule
from holdfast.server import create_app
from holdfast.settings import Settings

BYTES_PER_MIB = 1024 * 1024


def read_process_status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


class PeakMemory:
    """The peak growth of this process since the object was created, in MiB."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self.start_mib = read_process_status_mib("VmRSS")

    @property
    def growth_mib(self) -> float:
        return read_process_status_mib("VmHWM") - self.start_mib


async def generate_chunks(count: int, size: int = BYTES_PER_MIB) -> AsyncIterator[bytes]:
    chunk = os.urandom(size)
    for number in range(count):
        yield number.to_bytes(8, "big") + chunk[8:]


async def warm_up(client: Client) -> None:
    saved = await client.files.put("warm", b"x")
    async with client.files.open(saved) as reading:
        await reading.read()


async def measure_save_and_fetch(client: Client, mebibytes: int) -> dict[str, float]:
    await warm_up(client)
    memory, started = PeakMemory(), time.monotonic()
    saved = await client.files.put("large.bin", generate_chunks(mebibytes))
    save_memory_mib, save_s = memory.growth_mib, time.monotonic() - started
    assert saved.size == mebibytes * BYTES_PER_MIB
    memory, started, digest = PeakMemory(), time.monotonic(), hashlib.sha256()
    async with client.files.open(saved) as reading:
        async for chunk in reading:
            digest.update(chunk)
    assert digest.hexdigest() == saved.sha256
    return {
        "MiB": mebibytes,
        "save_seconds": save_s,
        "save_memory_MiB": save_memory_mib,
        "fetch_seconds": time.monotonic() - started,
        "fetch_memory_MiB": memory.growth_mib,
    }


async def measure_archive(client: Client, files: int, mebibytes: int) -> dict[str, float]:
    """Measure the memory of a server process that sends a ZIP to another process."""
    size = mebibytes * BYTES_PER_MIB // files
    async with client.connection() as connection:
        job = await connection.fetchval("select (holdfast.submit('{\"type\": \"t\"}') ->> 'id')::uuid")
    for number in range(files):
        await client.files.put(f"{number}.bin", generate_chunks(1, size), job=job)
    app = create_app(client.settings, database=await open_client_database(client), store=client.files.store)
    async with serve_app(app) as address:
        await download_in_child(f"{address}/healthz", client.settings)
        memory, started = PeakMemory(), time.monotonic()
        first_byte_s, byte_count = await download_in_child(f"{address}/api/jobs/{job}/zip", client.settings)
        return {
            "files": files,
            "MiB": byte_count / BYTES_PER_MIB,
            "first_byte_ms": 1000 * first_byte_s,
            "seconds": time.monotonic() - started,
            "memory_MiB": memory.growth_mib,
        }


DOWNLOAD_SCRIPT = """
import sys, time, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"authorization": "Bearer " + sys.argv[2]})
started = time.monotonic()
with urllib.request.urlopen(request) as response:
    byte_count = len(response.read(1))
    first_byte_s = time.monotonic() - started
    while chunk := response.read(1 << 20):
        byte_count += len(chunk)
print(first_byte_s, byte_count)
"""


async def download_in_child(url: str, settings: Settings) -> tuple[float, int]:
    """Return the seconds until the first byte, and the number of bytes."""
    key = settings.service_key.reveal() if settings.service_key else ""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DOWNLOAD_SCRIPT, url, key, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    first_byte_s, byte_count = output.split()
    return float(first_byte_s), int(byte_count)


INSERT_EXPIRED_FILES = """
    insert into holdfast.artifacts (id, job_id, owner, kind, name, key, content_type, size, sha256, status,
      counted_in_usage, created_at, touched_at, expires_at)
    select holdfast.new_id(), gen_random_uuid(), 'o' || n % 100, 'file', 'n' || n, 'k/' || n || '/a',
      'text/plain', 1, repeat('0', 64), 'visible', true, now(), now(), now()
    from generate_series($1::int, $2::int) n"""


async def measure_sweep(client: Client, files: int) -> dict[str, float]:
    database = await open_client_database(client)
    async with database.connection() as connection:
        await put_artifact_retention_rule(connection, ttl=None)
        for start in range(0, files, 10_000):
            await connection.execute(INSERT_EXPIRED_FILES, start, min(start + 10_000, files) - 1)
        await connection.execute(
            "insert into holdfast.usage (owner, bytes, files) select owner, count(*), count(*)"
            " from holdfast.artifacts group by owner"
        )
        await connection.execute("analyze holdfast.artifacts")
    folder = Path(client.settings.storage_url.reveal() if client.settings.storage_url else "")
    for number in range(files):
        (folder / "k" / str(number)).mkdir(parents=True)
        (folder / "k" / str(number) / "a").write_bytes(b"x")
    memory, started = PeakMemory(), time.monotonic()
    longest_s, max_keys = 0.0, 0
    original_delete = client.files.store.delete

    async def delete_and_record_time(keys: Sequence[str]) -> None:
        nonlocal longest_s, max_keys
        max_keys = max(max_keys, len(keys))
        delete_started = time.monotonic()
        await original_delete(keys)
        longest_s = max(longest_s, time.monotonic() - delete_started)

    client.files.store.delete = delete_and_record_time  # type: ignore[method-assign,assignment]
    result = await client.files.sweep()
    return {
        "files": result.deleted,
        "seconds": time.monotonic() - started,
        "max_keys_per_step": max_keys,
        "longest_step_ms": 1000 * longest_s,
        "left": len(await asyncio.to_thread(lambda: list(folder.rglob("*")))),
        "memory_MiB": memory.growth_mib,
    }


@asynccontextmanager
async def serve_app(app: ASGIApp) -> AsyncGenerator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await running


async def run_measurement(name: str, small: bool) -> None:
    settings = load_settings()
    server = embedded.start_server(settings)
    database = f"bench_{os.getpid()}"
    await scratch.create_template_database(server.url, database, settings)
    url = scratch.build_database_url(server.url, database)
    with tempfile.TemporaryDirectory(dir=settings.home) as folder:
        bench_settings = load_settings({"storage_url": folder, "service_key": "bench-key"})
        async with Client(url.reveal(), settings=bench_settings) as client:
            measure = {
                "save_and_fetch": lambda: measure_save_and_fetch(client, 64 if small else 1024),
                "archive": lambda: measure_archive(client, 100 if small else 1000, 64 if small else 2048),
                "sweep": lambda: measure_sweep(client, 2000 if small else 100_000),
            }[name]
            print(msgspec.json.encode({"measurement": name, **(await measure())}).decode())
    await scratch.drop_test_database(server.url, database, settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--small", action="store_true", help="run with small sizes, as a check of the benchmark"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(run_measurement(options.child, options.small))
        return
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOLDFAST_HOME": home}
        for name in ("save_and_fetch", "archive", "sweep"):
            command = [sys.executable, __file__, "--child", name, *(["--small"] if options.small else [])]
            subprocess.run(command, env=environment, check=True)
        embedded.stop_server(load_settings({"home": home}))


if __name__ == "__main__":
    main()
