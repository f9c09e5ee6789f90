"""Recover the database to a point in time: a base backup, archived WAL, and workers that continue.

This is what docs/operate/backup.md promises: work that ended before the time is kept and does not run again,
work that was running runs again, and work of after the time is unknown and can be submitted again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
import recorder_app
from replicated_servers import DATABASE_NAME, create_database
from worker_processes import WorkerProcesses

from campaign.servers import FaultServer
from holdfast import Client
from holdfast.engine import scratch
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

WAIT_TIMEOUT = timedelta(seconds=90)


@dataclass(frozen=True)
class ArchivingServer:
    """A server that archives its WAL."""

    folder: Path
    server: FaultServer

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    def copy(self) -> FaultServer:
        """Take a base backup, which can later recover to any time after this moment."""
        return FaultServer(self.folder / "restored", standby_of=self.server)

    async def archive_all(self) -> None:
        """Wait until the WAL up to now is in the archive."""
        connection = await self.server.connect()
        segment = await connection.fetchval("select pg_walfile_name(pg_switch_wal())")
        await wait_until((self.archive / segment).exists, within=WAIT_TIMEOUT, what="archived WAL")
        await connection.close()


@contextmanager
def run_archiving_server() -> Generator[ArchivingServer]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="recovery-", dir=memory if memory.is_dir() else None))
    folder.chmod(0o755)
    command = f"test ! -f {folder}/archive/%f && cp %p {folder}/archive/%f.part && "
    command += f"mv {folder}/archive/%f.part {folder}/archive/%f"
    options = {"fsync": "off", "archive_mode": "on", "archive_command": command}
    primary = FaultServer(folder / "primary", options)
    try:
        primary.create_archive_folder(folder / "archive")
        primary.start()
        yield ArchivingServer(folder, primary)
    finally:
        primary.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def get_url(server: FaultServer) -> Secret:
    return scratch.build_database_url(server.url, DATABASE_NAME)


async def run_short_jobs(client: Client, numbers: range) -> None:
    """Submit jobs under the keys of their numbers, and wait until they have ended."""
    jobs = [
        await client.submit(recorder_app.record_number(number), key=f"short {number}") for number in numbers
    ]
    for job in jobs:
        await job.result()


async def stop_workers(workers: WorkerProcesses) -> None:
    for process in workers.started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def work_before_the_accident(
    site: ArchivingServer, workers: WorkerProcesses, settings: Settings
) -> tuple[FaultServer, datetime, UUID]:
    """Work, take a base backup, work on, note the time, and work on after it.

    Return the copy, the time, and the id of the job that was running at that time.
    """
    async with Client(workers.url.reveal(), settings=settings) as client:
        await workers.start("--concurrency", "5")
        await run_short_jobs(client, range(10))
        restored = await asyncio.to_thread(site.copy)
        await run_short_jobs(client, range(10, 20))
        interrupted = await client.submit(recorder_app.wait_for_gate("gate"))
        later = await client.submit(recorder_app.record_number(77), delay=2)
        await wait_until(
            lambda: workers.has_recorded("began", "gate", 1), within=WAIT_TIMEOUT, what="a running task"
        )
        async with client.connection() as connection:
            target: datetime = await connection.fetchval("select clock_timestamp()")
        workers.open_gate("gate")
        await interrupted.result()
        await later.result()
        await run_short_jobs(client, range(20, 30))
    await site.archive_all()
    return restored, target, interrupted.id


@pytest.mark.timeout(400)
async def test_work_continues_from_the_time_that_was_recovered(settings: Settings, tmp_path: Path) -> None:
    with run_archiving_server() as site:
        await site.server.wait_until_ready()
        await create_database(site.server, settings)
        workers = WorkerProcesses(get_url(site.server), tmp_path)
        try:
            restored, target, interrupted = await work_before_the_accident(site, workers, settings)
        finally:
            await stop_workers(workers)  # the page says: stop them before the restore
        site.server.crash()
        try:
            restored.recover_to(target.isoformat(), site.archive)
            restored.start()
            await wait_until_writable(restored)
            await check_the_recovered_work(get_url(restored), interrupted, tmp_path, settings)
        finally:
            restored.destroy()


async def wait_until_writable(server: FaultServer) -> None:
    async def is_writable() -> bool:
        assert not server.has_exited, server.log.read_text()[-2000:]
        try:
            connection = await server.connect()
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        recovering: bool = await connection.fetchval("select pg_is_in_recovery()")
        await connection.close()
        return not recovering

    await wait_until(is_writable, within=WAIT_TIMEOUT, what="the end of the recovery")


async def check_the_recovered_work(url: Secret, interrupted: UUID, folder: Path, settings: Settings) -> None:
    after = WorkerProcesses(url, folder / "after")
    after.folder.mkdir()
    after.open_gate("gate")
    async with Client(url.reveal(), settings=settings) as client:
        assert (await client.get(interrupted)).status == "running"
        async with client.connection() as connection:
            assert await connection.fetchval("select count(*) from holdfast.history") == 20
        try:
            await after.start("--concurrency", "5")
            await wait_until(
                lambda: after.has_recorded("ended", "gate", 2),
                within=WAIT_TIMEOUT,
                what="the interrupted job",
            )
            await run_short_jobs(client, range(30))  # the first 20 are known by their keys
            await wait_until(
                lambda: after.has_recorded("record_number", 77, 1),
                within=WAIT_TIMEOUT,
                what="the delayed job",
            )
        finally:
            await stop_workers(after)
    lines = Counter(tuple(line[1:3]) for line in after.read_record_lines())
    expected = {("record_number", str(number)): 1 for number in (*range(20, 30), 77)}
    assert lines == {**expected, ("began", "gate"): 1, ("ended", "gate"): 1}
