"""Where a run takes place: a server of its own, a database with the ledger, workers, and notes about all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from campaign.records import Recorder
from campaign.servers import Server
from holdfast import Client
from holdfast import settings as settings_module
from holdfast.definitions import Call
from holdfast.engine import install, scratch
from holdfast.engine.connection import Connection, connected
from holdfast.settings import Secret, Settings

DATABASE = "arena"
LEDGER = Path(__file__).with_name("ledger.sql").read_text(encoding="utf-8")
ENDED = ("succeeded", "failed", "cancelled", "partial")


@dataclass
class Arena:
    folder: Path
    server: Server
    url: Secret
    settings: Settings
    random: random.Random
    nursery: asyncio.subprocess.Process
    recorder: Recorder
    client: Client
    alive: set[int] = field(default_factory=set[int])
    forgets: bool = False  # acknowledged work may be lost: an asynchronous standby took over
    through: Secret | None = None  # the address workers use, if it is not the server's

    async def worker(self, *options: str) -> int:
        """Start a worker and answer with its pid."""
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        say = {
            "url": (self.through or self.url).reveal(),
            "records": str(self.records),
            "log": str(self.folder / "workers.log"),
            "options": ["--concurrency", "16", *options],
        }
        self.nursery.stdin.write(json.dumps(say).encode() + b"\n")
        await self.nursery.stdin.drain()
        pid = int(await self.nursery.stdout.readline())
        self.alive.add(pid)
        return pid

    @property
    def records(self) -> Path:
        return self.folder / "records"

    async def at_work(self) -> int:
        """Somebody who has begun a task by now; a worker that is still starting is no victim worth a kill."""
        while True:
            busy = [pid for pid in sorted(self.alive) if (self.records / f"{pid}.rec").exists()]
            if busy:
                return self.random.choice(busy)
            await asyncio.sleep(0.01)

    def kill(self, pid: int) -> None:
        """Kill -9, and write down when it was gone, with all that it had started: that ends with it."""
        family = [pid, *_descendants(pid)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for member in family:
            if member != pid and not (self.records / f"{member}.rec").exists():
                continue  # it ran no task; the process that renews leases outlives its worker for a moment
            while not _is_gone(member):
                time.sleep(0.0005)
            self.recorder.write("killed", note=str(member))
        self.alive.discard(pid)

    def send(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        self.recorder.write(number.name, note=str(pid))

    async def submit(self, calls: Iterable[Call[object]], **say: object) -> list[str]:
        """Submit, and write down what was acknowledged, or that nobody knows."""
        try:
            handles = await self.client.submit_many(list(calls), **say)  # type: ignore[arg-type]
        except Exception:
            self.recorder.write("unknown")
            raise
        for handle in handles:
            self.recorder.write("acknowledged", str(handle.id))
        return [str(handle.id) for handle in handles]

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        async with connected(self.url, self.settings) as connection:
            yield connection

    async def unfinished(self) -> int:
        async with self.connection() as connection:
            left = await connection.fetchval(
                "select (select count(*) from holdfast.tasks where status <> all ($1::text[]))"
                " + (select count(*) from holdfast.jobs where finished_at is null)",
                list(ENDED),
            )
            return int(left)

    async def drained(self, seconds: float = 120.0, workers: int = 2) -> None:
        """Until everything has ended, with workers that are replaced when they die."""
        deadline = time.monotonic() + seconds
        while await self._left():
            self.alive = {pid for pid in self.alive if not _is_gone(pid)}
            while len(self.alive) < workers:
                await self.worker()
            if time.monotonic() > deadline:
                raise AssertionError(f"{await self.unfinished()} tasks or jobs did not end in {seconds} s")
            await asyncio.sleep(0.05)

    async def _left(self) -> int:
        try:
            return await self.unfinished()
        except Exception:  # the server may just be crashing; asked again at once
            return 1

    async def stop_workers(self, seconds: float = 40.0) -> None:
        for pid in self.alive:
            self.send(pid, signal.SIGCONT)
            self.send(pid, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for pid in list(self.alive):
            while not _is_gone(pid) and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            if not _is_gone(pid):
                self.kill(pid)
            self.alive.discard(pid)


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or _is_zombie(pid)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(place.parent.name)] = int(place.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


@asynccontextmanager
async def arena(seed: int, options: dict[str, str] | None = None) -> AsyncGenerator[Arena]:
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    folder.chmod(0o755)
    (folder / "records").mkdir()
    server = Server(folder / "server", options)
    server.start()
    nursery: asyncio.subprocess.Process | None = None
    try:
        await server.ready()
        settings = settings_module.load({"home": str(folder / "server")})
        url = scratch.on_database(server.url, DATABASE)
        await _prepare(server, url, settings)
        nursery = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "campaign.nursery",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "CAMPAIGN_RECORDS": str(folder / "records")},
        )  # fmt: skip
        client = Client(url.reveal(), settings=settings)
        ring = Arena(
            folder, server, url, settings, random.Random(seed), nursery, Recorder(folder / "records"), client
        )
        try:
            yield ring
        finally:
            for pid in list(ring.alive):
                ring.kill(pid)
            await ring.client.close()
            ring.server.destroy()
    finally:
        if nursery is not None:
            nursery.kill()
            await nursery.wait()
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


async def _prepare(server: Server, url: Secret, settings: Settings) -> None:
    connection = await asyncpg.connect(server.url.reveal())
    await connection.execute(f"create database {DATABASE}")
    await connection.close()
    await install.migrate(url, settings)
    connection = await asyncpg.connect(url.reveal())
    await connection.execute(LEDGER)
    await connection.close()
