"""What files cost: memory of saving and fetching 1 GiB, a ZIP of 1,000 files, its first byte, the sweep.

    python bench/files.py [--small]

Each figure is taken in a child process of its own on a database of its own. Memory is what the child's
resident set grew by at its peak (VmHWM against VmRSS before), so it counts everything: Python, buffers, the
object-store library.
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

from holdfast import Client
from holdfast import settings as settings_module
from holdfast.client import open_client_database
from holdfast.engine import embedded, scratch
from holdfast.engine.artifacts import put_artifact_retention
from holdfast.server import create_app
from holdfast.settings import Settings

MIB = 1024 * 1024


def status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


class Memory:
    """How much the process grew at most since this was made, in MiB."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self.before = status("VmRSS")

    @property
    def grown(self) -> float:
        return status("VmHWM") - self.before


async def pieces(count: int, size: int = MIB) -> AsyncIterator[bytes]:
    piece = os.urandom(size)
    for number in range(count):
        yield number.to_bytes(8, "big") + piece[8:]


async def warm(client: Client) -> None:
    saved = await client.files.put("warm", b"x")
    async with client.files.open(saved) as reading:
        await reading.read()


async def save_and_fetch(client: Client, mebibytes: int) -> dict[str, float]:
    await warm(client)
    memory, began = Memory(), time.monotonic()
    saved = await client.files.put("large.bin", pieces(mebibytes))
    grown_saving, seconds_saving = memory.grown, time.monotonic() - began
    assert saved.size == mebibytes * MIB
    memory, began, digest = Memory(), time.monotonic(), hashlib.sha256()
    async with client.files.open(saved) as reading:
        async for piece in reading:
            digest.update(piece)
    assert digest.hexdigest() == saved.sha256
    return {
        "MiB": mebibytes,
        "save_seconds": seconds_saving,
        "save_memory_MiB": grown_saving,
        "fetch_seconds": time.monotonic() - began,
        "fetch_memory_MiB": memory.grown,
    }


async def archive(client: Client, files: int, mebibytes: int) -> dict[str, float]:
    """A ZIP over a real port, read by another process; memory of the serving one."""
    size = mebibytes * MIB // files
    async with client.connection() as connection:
        job = await connection.fetchval("select (holdfast.submit('{\"type\": \"t\"}') ->> 'id')::uuid")
    for number in range(files):
        await client.files.put(f"{number}.bin", pieces(1, size), job=job)
    app = create_app(client.settings, database=await open_client_database(client), store=client.files.store)
    async with served(app) as address:
        await fetched(f"{address}/healthz", client.settings)
        memory, began = Memory(), time.monotonic()
        first, count = await fetched(f"{address}/api/jobs/{job}/zip", client.settings)
        return {
            "files": files,
            "MiB": count / MIB,
            "first_byte_ms": 1000 * first,
            "seconds": time.monotonic() - began,
            "memory_MiB": memory.grown,
        }


READER = """
import sys, time, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"authorization": "Bearer " + sys.argv[2]})
began = time.monotonic()
with urllib.request.urlopen(request) as answer:
    count = len(answer.read(1))
    first = time.monotonic() - began
    while piece := answer.read(1 << 20):
        count += len(piece)
print(first, count)
"""


async def fetched(url: str, settings: Settings) -> tuple[float, int]:
    key = settings.service_key.reveal() if settings.service_key else ""
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, url, key, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await reader.communicate()
    first, count = out.split()
    return float(first), int(count)


EXPIRED = """
    insert into holdfast.artifacts (id, job_id, owner, kind, name, key, content_type, size, sha256, status,
      counted, created_at, touched_at, expires_at)
    select holdfast.new_id(), gen_random_uuid(), 'o' || n % 100, 'file', 'n' || n, 'k/' || n || '/a',
      'text/plain', 1, repeat('0', 64), 'visible', true, now(), now(), now()
    from generate_series($1::int, $2::int) n"""


async def sweep(client: Client, files: int) -> dict[str, float]:
    database = await open_client_database(client)
    async with database.connection() as connection:
        await put_artifact_retention(connection, ttl=None)
        for begin in range(0, files, 10_000):
            await connection.execute(EXPIRED, begin, min(begin + 10_000, files) - 1)
        await connection.execute(
            "insert into holdfast.usage (owner, bytes, files) select owner, count(*), count(*)"
            " from holdfast.artifacts group by owner"
        )
        await connection.execute("analyze holdfast.artifacts")
    folder = Path(client.settings.storage_url.reveal() if client.settings.storage_url else "")
    for number in range(files):
        (folder / "k" / str(number)).mkdir(parents=True)
        (folder / "k" / str(number) / "a").write_bytes(b"x")
    memory, began = Memory(), time.monotonic()
    longest, max_keys = 0.0, 0
    real = client.files.store.delete

    async def watched(keys: Sequence[str]) -> None:
        nonlocal longest, max_keys
        max_keys = max(max_keys, len(keys))
        at = time.monotonic()
        await real(keys)
        longest = max(longest, time.monotonic() - at)

    client.files.store.delete = watched  # type: ignore[method-assign,assignment]
    swept = await client.files.sweep()
    return {
        "files": swept.deleted,
        "seconds": time.monotonic() - began,
        "max_keys_per_step": max_keys,
        "longest_step_ms": 1000 * longest,
        "left": len(await asyncio.to_thread(lambda: list(folder.rglob("*")))),
        "memory_MiB": memory.grown,
    }


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncGenerator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await running


async def child(name: str, small: bool) -> None:
    settings = settings_module.load_settings()
    server = embedded.start_server(settings)
    database = f"bench_{os.getpid()}"
    await scratch.create_template_database(server.url, database, settings)
    url = scratch.url_of_database(server.url, database)
    with tempfile.TemporaryDirectory(dir=settings.home) as folder:
        changed = settings_module.load_settings({"storage_url": folder, "service_key": "bench-key"})
        async with Client(url.reveal(), settings=changed) as client:
            work = {
                "save_and_fetch": lambda: save_and_fetch(client, 64 if small else 1024),
                "archive": lambda: archive(client, 100 if small else 1000, 64 if small else 2048),
                "sweep": lambda: sweep(client, 2000 if small else 100_000),
            }[name]
            print(msgspec.json.encode({"what": name, **(await work())}).decode())
    await scratch.drop_database(server.url, database, settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        asyncio.run(child(options.child, options.small))
        return
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOLDFAST_HOME": home}
        for name in ("save_and_fetch", "archive", "sweep"):
            command = [sys.executable, __file__, "--child", name, *(["--small"] if options.small else [])]
            subprocess.run(command, env=environment, check=True)
        embedded.stop_server(settings_module.load_settings({"home": home}))


if __name__ == "__main__":
    main()
