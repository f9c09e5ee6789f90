"""Where a run takes place: a server of its own, a database with the ledger, workers, and notes about all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from campaign.records import Recorder, life_of
from campaign.servers import Server
from holdfast import Client
from holdfast import settings as settings_module
from holdfast.definitions.tasks import Call
from holdfast.engine import install, scratch
from holdfast.engine.connection import Connection, connected
from holdfast.settings import Secret, Settings

DATABASE = "arena"
LEDGER = Path(__file__).with_name("ledger.sql").read_text(encoding="utf-8")
ENDED = ("succeeded", "failed", "cancelled", "partial")
ROOT = Path(__file__).parents[1]
FAKETIME = ROOT / "scripts" / "faketime.sh"
ENOUGH_MEMORY = 8 << 30
SMALL_DISK = "220m"
WATCH_SECONDS = 5.0
UNFINISHED = """select (select count(*) from holdfast.tasks where status <> all ($1::text[]))
  + (select count(*) from holdfast.jobs where finished_at is null)"""


class NotHereError(Exception):
    """A run needs something that this machine does not let it have."""


@dataclass
class Arena:
    folder: Path
    server: Server
    url: Secret
    settings: Settings
    random: random.Random
    nurseries: dict[str, asyncio.subprocess.Process]
    recorder: Recorder
    client: Client
    alive: dict[int, int] = field(default_factory=dict[int, int])  # pids and their lives
    forgets: bool = False  # acknowledged work may be lost: an asynchronous standby took over
    through: Secret | None = None  # the address workers use, if it is not the server's
    known: dict[str, Any] = field(default_factory=dict[str, Any])  # what a run tells the judge
    workers_killed: int = 0
    until: float = float("inf")  # when to break no more, whatever the dose
    few: tuple[str, ...] = ("--concurrency", "4")  # slots, where a fault shall hit a handful of tasks
    _asking: Connection | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def faults(self, number: int) -> Iterator[int]:
        """Numbers up to the dose, or until the time is up."""
        for each in range(number):
            if time.monotonic() > self.until:
                return
            yield each

    async def worker(self, *options: str, skew: str = "") -> int:
        """Start a worker and answer with its pid; with a clock that is wrong by `skew`, if said."""
        async with self._starting:
            if skew not in self.nurseries:
                self.nurseries[skew] = await _nursery(self.folder, skew)
        nursery = self.nurseries[skew]
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        say = {
            "url": (self.through or self.url).reveal(),
            "records": str(self.records),
            "log": str(self.folder / "workers.log"),
            "options": ["--concurrency", "16", *options],
        }
        async with self._starting:
            nursery.stdin.write(json.dumps(say).encode() + b"\n")
            await nursery.stdin.drain()
            pid = int(await nursery.stdout.readline())
        self.alive[pid] = life_of(pid)
        return pid

    @property
    def records(self) -> Path:
        return self.folder / "records"

    async def at_work(self, but: Collection[int] = ()) -> int:
        """Somebody who has begun a task by now; a worker that is still starting is no victim worth a kill."""
        while True:
            busy = [pid for pid in self.alive.keys() - but if self.has_begun(pid)]
            if busy:
                return self.random.choice(sorted(busy))
            await asyncio.sleep(0.01)

    def has_begun(self, pid: int) -> bool:
        return (self.records / f"{self.alive[pid]}.rec").exists()

    async def at_it_again(self, patience: float = 20.0) -> None:
        """Until the workers write down that they do something, after whatever was done to them."""
        before, deadline = self._written(), time.monotonic() + patience
        while self._written() == before and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def _written(self) -> int:
        """Bytes in the records of those alive."""
        places = (self.records / f"{life}.rec" for life in self.alive.values())
        return sum(place.stat().st_size for place in places if place.exists())

    def kill(self, pid: int, *, family: bool = False) -> None:
        """Kill -9, and write down when it was gone, with all that it had started: that ends with it.

        With its family goes the process that renews its leases, as when a machine is lost: nobody is left who
        could hand in what it held, and its leases run out.
        """
        members = {member: life_of(member) for member in (pid, *_descendants(pid))}
        for member in members if family else [pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self.workers_killed += 1
        self._watch_them_go(members, outlive=0 if family else 1)
        self.alive.pop(pid, None)

    def _watch_them_go(self, members: dict[int, int], outlive: int) -> None:
        """Children that run tasks die at once with their worker, also those that had not begun yet when we
        looked. The process that renews leases outlives it for a moment, and runs no task.
        """
        deadline = time.monotonic() + WATCH_SECONDS
        while len(members) > outlive and time.monotonic() < deadline:
            for member in [each for each in members if _is_gone(each)]:
                self.recorder.write("killed", note=str(members.pop(member)))
            time.sleep(0.0005)

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
        """Tasks and jobs that have not ended; the connection is kept, as this is asked often."""
        try:
            if self._asking is None:
                self._asking = await asyncpg.connect(self.url.reveal(), timeout=10)
            return int(await self._asking.fetchval(UNFINISHED, list(ENDED), timeout=20))
        except Exception as problem:  # the driver has many words for a connection that was ended
            self.forget_connection()
            raise ConnectionError(str(problem)) from problem

    def forget_connection(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.terminate()

    async def drained(self, seconds: float = 120.0, workers: int = 2) -> None:
        """Until everything has ended, with workers that are replaced when they die."""
        deadline = time.monotonic() + seconds
        while await self._left():
            await self.at_least(workers)
            if time.monotonic() > deadline:
                raise AssertionError(f"{await self.unfinished()} tasks or jobs did not end in {seconds} s")
            await asyncio.sleep(0.05)

    async def at_least(self, workers: int, *options: str) -> None:
        """Replace those who have left by themselves, as a supervisor does."""
        self.alive = {pid: life for pid, life in self.alive.items() if not _is_gone(pid)}
        while len(self.alive) < workers:
            await self.worker(*options)

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
            await self.gone(pid, deadline - time.monotonic())

    async def gone(self, pid: int, seconds: float = 40.0) -> None:
        """Until a worker that was asked to has ended; killed if it takes longer."""
        deadline = time.monotonic() + seconds
        while not _is_gone(pid) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if not _is_gone(pid):
            self.kill(pid)
        self.alive.pop(pid, None)


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or _is_zombie(pid)


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for place in Path(f"/proc/{each}/task").glob("*/children"):
                found += [int(child) for child in place.read_text().split()]
    return found[1:]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


async def _nursery(folder: Path, skew: str = "") -> asyncio.subprocess.Process:
    found = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "CAMPAIGN_RECORDS": str(folder / "records"),
        "PYTHONPATH": f"{ROOT}:{found}" if found else str(ROOT),
    }
    if skew:
        library = subprocess.run([FAKETIME], check=True, capture_output=True, text=True).stdout.strip()
        environment |= {"LD_PRELOAD": library, "FAKETIME": skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "campaign.nursery",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        cwd=folder,  # no settings of ours are read there
    )  # fmt: skip


@contextmanager
def _disk(folder: Path, *, small: bool) -> Generator[None]:
    """A small one, for the server alone, that can be filled up."""
    folder.mkdir()
    if not small:
        yield
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=755", "campaign", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotHereError(f"nobody may mount a disk here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


@asynccontextmanager
async def arena(
    seed: int, options: dict[str, str] | None = None, *, small_disk: bool = False
) -> AsyncGenerator[Arena]:
    folder = Path(tempfile.mkdtemp(prefix="campaign-", dir=_fast_place()))
    folder.chmod(0o755)
    (folder / "records").mkdir()
    try:
        with _disk(folder / "server", small=small_disk):
            async with _opened(folder, seed, options) as ring:
                yield ring
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _opened(folder: Path, seed: int, options: dict[str, str] | None) -> AsyncGenerator[Arena]:
    server = Server(folder / "server", options)
    server.start()
    nurseries: dict[str, asyncio.subprocess.Process] = {}
    try:
        await server.ready()
        settings = settings_module.load({"home": str(folder / "server")})
        # There is no encryption to agree on; asking for it is a good part of what a new worker costs.
        url = Secret(scratch.on_database(server.url, DATABASE).reveal() + "?sslmode=disable")
        await _prepare(server, url, settings)
        nurseries[""] = await _nursery(folder)
        client = Client(url.reveal(), settings=settings)
        recorder, chance = Recorder(folder / "records"), random.Random(seed)
        ring = Arena(folder, server, url, settings, chance, nurseries, recorder, client)
        try:
            yield ring
        finally:
            for pid in list(ring.alive):
                ring.kill(pid)
            ring.forget_connection()
            await ring.client.close()
            ring.server.destroy()
    finally:
        for nursery in nurseries.values():
            with contextlib.suppress(ProcessLookupError):
                nursery.kill()
            await nursery.wait()
        server.destroy()


def _fast_place() -> Path | None:
    """Memory, where there is enough: processes are crashed here, not machines, and what they have written
    outlives them on either. On a disk that others use a start after a crash can take ten seconds.
    """
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > ENOUGH_MEMORY else None


async def _prepare(server: Server, url: Secret, settings: Settings) -> None:
    connection = await asyncpg.connect(server.url.reveal())
    await connection.execute(f"create database {DATABASE}")
    await connection.close()
    await install.migrate(url, settings)
    connection = await asyncpg.connect(url.reveal())
    await connection.execute(LEDGER)
    await connection.close()
