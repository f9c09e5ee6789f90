"""The environment of a run: its own server, a database with the ledger, workers and their records."""

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

from campaign.patroni import PatroniCluster
from campaign.processes import UnsupportedMachineError, is_gone, list_descendants
from campaign.records import Recorder, get_process_key
from campaign.servers import FaultServer
from holdfast import Client
from holdfast import settings as settings_module
from holdfast.definitions.tasks import Call
from holdfast.engine import hosts, install, scratch
from holdfast.engine.connection import Connection, open_connection
from holdfast.settings import Secret, Settings

DATABASE_NAME = "environment"
LEDGER_SQL = Path(__file__).with_name("ledger.sql").read_text(encoding="utf-8")
ENDED_STATUSES = ("succeeded", "failed", "cancelled", "partial")
ROOT = Path(__file__).parents[1]
FAKETIME_SCRIPT = ROOT / "scripts" / "faketime.sh"
MIN_FREE_MEMORY_BYTES = 8 << 30
HOLDFAST_COMMAND = (sys.executable, "-m", "holdfast")
SMALL_DISK_SIZE = "220m"
MAX_CHILD_DEATH_WAIT_S = 5.0
COUNT_UNFINISHED = """select (select count(*) from holdfast.tasks where status <> all ($1::text[]))
  + (select count(*) from holdfast.jobs where finished_at is null)"""


@dataclass
class FaultEnvironment:
    """The server, the workers and the records of one run."""

    folder: Path
    server: FaultServer
    url: Secret
    settings: Settings
    random: random.Random
    forkers: dict[str, asyncio.subprocess.Process]
    recorder: Recorder
    client: Client
    live_workers: dict[int, int] = field(default_factory=dict[int, int])  # process key by pid
    may_lose_acknowledged: bool = False  # after a failover to an asynchronous standby
    cluster: PatroniCluster | None = None  # instead of `server`, in runs with several nodes
    worker_url: Secret | None = None  # the URL that workers use, if it differs from `url`
    checker_inputs: dict[str, Any] = field(default_factory=dict[str, Any])  # extra fields of RunHistory
    workers_killed: int = 0
    fault_deadline: float = float("inf")  # monotonic time after which no fault is injected
    small_worker_options: tuple[str, ...] = (
        "--concurrency",
        "4",
    )  # a fault hits few tasks
    real_workers: bool = False  # start workers as users do, instead of forking prepared ones
    worker_app: str = "campaign.default_app"  # of real workers
    worker_variables: dict[str, str] = field(default_factory=dict[str, str])  # environment of real workers
    _real_workers: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])
    _status_connection: Connection | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def iterate_faults(self, number: int) -> Iterator[int]:
        """Yield 0, 1, 2, ... once per fault, up to `number` faults or until the fault deadline."""
        for index in range(number):
            if time.monotonic() > self.fault_deadline:
                return
            yield index

    async def start_worker(self, *options: str, skew: str = "") -> int:
        """Start a worker and return its pid. `skew` shifts the clock of the worker."""
        if self.real_workers:
            return self._start_real_worker()
        async with self._starting:
            if skew not in self.forkers:
                self.forkers[skew] = await _start_forker(self.folder, skew)
        forker = self.forkers[skew]
        assert forker.stdin is not None
        assert forker.stdout is not None
        command = {
            "url": (self.worker_url or self.url).reveal(),
            "records": str(self.records_folder),
            "log": str(self.folder / "workers.log"),
            "options": ["--concurrency", "16", *options],
        }
        async with self._starting:
            forker.stdin.write(json.dumps(command).encode() + b"\n")
            await forker.stdin.drain()
            pid = int(await forker.stdout.readline())
        self.live_workers[pid] = get_process_key(pid)
        return pid

    def _start_real_worker(self) -> int:
        """Start `holdfast worker` as users do, with its default options."""
        environment = {**build_worker_environment(self.folder), **self.worker_variables}
        environment["HOLDFAST_DATABASE_URL"] = (self.worker_url or self.url).reveal()
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [*HOLDFAST_COMMAND, "--log-level", "warning", "worker", self.worker_app],
                env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._real_workers.append(process)
        self.live_workers[process.pid] = get_process_key(process.pid)
        return process.pid

    @property
    def records_folder(self) -> Path:
        return self.folder / "records"

    async def pick_busy_worker(self, excluded: Collection[int] = ()) -> int:
        """Wait until a worker has started a task, and return one at random.

        Killing a worker that is still starting proves nothing.
        """
        while True:
            busy = [pid for pid in self.live_workers.keys() - excluded if self.has_started_task(pid)]
            if busy:
                return self.random.choice(sorted(busy))
            await asyncio.sleep(0.01)

    def has_started_task(self, pid: int) -> bool:
        return (self.records_folder / f"{self.live_workers[pid]}.rec").exists()

    async def wait_for_progress(self, timeout_s: float = 20.0) -> None:
        """Wait until a worker records something new, which proves that work continues after a fault."""
        before, deadline = self._count_record_bytes(), time.monotonic() + timeout_s
        while self._count_record_bytes() == before and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def _count_record_bytes(self) -> int:
        """Count the bytes in the records of live workers."""
        places = (self.records_folder / f"{process_key}.rec" for process_key in self.live_workers.values())
        return sum(place.stat().st_size for place in places if place.exists())

    def kill_worker(self, pid: int, *, with_children: bool = False) -> None:
        """Send SIGKILL to a worker and record when the worker and its children are gone.

        `with_children` also kills the heartbeat process, as when a machine is lost: no process is left that
        could release the leases, so they expire.
        """
        members = {member: get_process_key(member) for member in (pid, *list_descendants(pid))}
        for member in members if with_children else [pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self.workers_killed += 1
        self._record_deaths(members, max_survivors=0 if with_children else 1)
        self.live_workers.pop(pid, None)

    def _record_deaths(self, members: dict[int, int], max_survivors: int) -> None:
        """Record the deaths of a worker and its children, until only `max_survivors` processes are left.

        Children that run tasks die with their worker. The heartbeat process outlives it for a moment and runs
        no task.
        """
        deadline = time.monotonic() + MAX_CHILD_DEATH_WAIT_S
        while len(members) > max_survivors and time.monotonic() < deadline:
            for member in [each for each in members if is_gone(each)]:
                self.recorder.write_line("killed", note=str(members.pop(member)))
            time.sleep(0.0005)

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        self.recorder.write_line(number.name, note=str(pid))

    async def submit(self, calls: Iterable[Call[object]], **options: object) -> list[str]:
        """Submit calls. Record the acknowledged ids, or that the result is unknown."""
        try:
            handles = await self.client.submit_many(list(calls), **options)  # type: ignore[arg-type]
        except Exception:
            self.recorder.write_line("unknown")
            raise
        for handle in handles:
            self.recorder.write_line("acknowledged", str(handle.id))
        return [str(handle.id) for handle in handles]

    @asynccontextmanager
    async def open_connection(self) -> AsyncGenerator[Connection]:
        async with open_connection(self.url, self.settings) as connection:
            yield connection

    async def count_unfinished(self) -> int:
        """Count tasks and jobs that have not ended. Keeps its connection, because runs poll this often."""
        try:
            if self._status_connection is None:
                self._status_connection = await hosts.connect_to_primary(self.url.reveal(), timeout=10)
            return int(
                await self._status_connection.fetchval(COUNT_UNFINISHED, list(ENDED_STATUSES), timeout=20)
            )
        except Exception as problem:  # the driver has many arguments for a connection that was ended
            self.close_status_connection()
            raise ConnectionError(str(problem)) from problem

    def close_status_connection(self) -> None:
        connection, self._status_connection = self._status_connection, None
        if connection is not None:
            connection.terminate()

    async def wait_until_drained(self, seconds: float = 120.0, workers: int = 2) -> None:
        """Wait until every job has ended. Replaces workers that die."""
        deadline = time.monotonic() + seconds
        while await self._count_unfinished_if_reachable():
            await self.keep_workers_running(workers)
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{await self.count_unfinished()} tasks or jobs did not end in {seconds} s"
                )
            await asyncio.sleep(0.05)

    async def keep_workers_running(self, workers: int, *options: str) -> None:
        """Start workers until `workers` are alive, as a supervisor does."""
        self.live_workers = {
            pid: process_key for pid, process_key in self.live_workers.items() if not is_gone(pid)
        }
        while len(self.live_workers) < workers:
            await self.start_worker(*options)

    async def _count_unfinished_if_reachable(self) -> int:
        try:
            return await self.count_unfinished()
        except Exception:  # the server may be down; the caller polls again
            return 1

    async def stop_workers(self, seconds: float = 40.0) -> None:
        for pid in self.live_workers:
            self.send_signal(pid, signal.SIGCONT)
            self.send_signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for pid in list(self.live_workers):
            await self.wait_for_exit(pid, deadline - time.monotonic())

    async def wait_for_exit(self, pid: int, seconds: float = 40.0) -> None:
        """Wait for a worker to exit after SIGTERM. Kill it if it takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while not is_gone(pid) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if not is_gone(pid):
            self.kill_worker(pid)
        self.live_workers.pop(pid, None)


def build_worker_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a worker process that runs the tasks of the campaign."""
    python_path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "CAMPAIGN_RECORDS": str(folder / "records"),
        "PYTHONPATH": f"{ROOT}:{python_path}" if python_path else str(ROOT),
    }


async def _start_forker(folder: Path, skew: str = "") -> asyncio.subprocess.Process:
    environment = build_worker_environment(folder)
    if skew:
        library = subprocess.run([FAKETIME_SCRIPT], check=True, capture_output=True, text=True).stdout.strip()
        environment |= {"LD_PRELOAD": library, "FAKETIME": skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "campaign.worker_forker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        cwd=folder,  # no pyproject.toml with settings is there
    )  # fmt: skip


@contextmanager
def _mount_disk(folder: Path, *, small: bool) -> Generator[None]:
    """Mount a small disk for the server, so that a run can fill it."""
    folder.mkdir()
    if not small:
        yield
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_SIZE},mode=755", "campaign", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedMachineError(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


@asynccontextmanager
async def open_environment(
    seed: int, options: dict[str, str] | None = None, *, small_disk: bool = False
) -> AsyncGenerator[FaultEnvironment]:
    folder = Path(tempfile.mkdtemp(prefix="campaign-", dir=_find_memory_folder()))
    folder.chmod(0o755)
    (folder / "records").mkdir()
    try:
        with _mount_disk(folder / "server", small=small_disk):
            async with _start_environment(folder, seed, options) as env:
                yield env
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _start_environment(
    folder: Path, seed: int, options: dict[str, str] | None
) -> AsyncGenerator[FaultEnvironment]:
    server = FaultServer(folder / "server", options)
    server.start()
    forkers: dict[str, asyncio.subprocess.Process] = {}
    try:
        await server.wait_until_ready()
        settings = settings_module.load_settings({"home": str(folder / "server")})
        # TLS negotiation is a large part of the cost of starting a worker.
        url = Secret(scratch.build_database_url(server.url, DATABASE_NAME).reveal() + "?sslmode=disable")
        await create_database(server.url, url, settings)
        forkers[""] = await _start_forker(folder)
        client = Client(url.reveal(), settings=settings)
        recorder, chance = Recorder(folder / "records"), random.Random(seed)
        env = FaultEnvironment(folder, server, url, settings, chance, forkers, recorder, client)
        try:
            yield env
        finally:
            for pid in list(env.live_workers):
                env.kill_worker(pid)
            env.close_status_connection()
            try:
                await env.client.close()
            finally:  # closing fails if the run was interrupted while its server was frozen
                env.server.destroy()
                if env.cluster is not None:
                    env.cluster.destroy()
    finally:
        for forker in forkers.values():
            with contextlib.suppress(ProcessLookupError):
                forker.kill()
            await forker.wait()
        server.destroy()


def _find_memory_folder() -> Path | None:
    """Return a folder in memory if enough memory is free, else None.

    The campaign crashes processes, not machines, so written data survives in memory as it does on disk. On a
    busy disk a restart after a crash can take ten seconds.
    """
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > MIN_FREE_MEMORY_BYTES else None


async def create_database(server_url: Secret, url: Secret, settings: Settings) -> None:
    """Create the database of a run on a server, with the schema and the ledger."""
    connection = await hosts.connect_to_primary(server_url.reveal())
    await connection.execute(f"create database {DATABASE_NAME}")
    await connection.close()
    await install.migrate_database(url, settings)
    connection = await hosts.connect_to_primary(url.reveal())
    await connection.execute(LEDGER_SQL)
    await connection.close()
