"""A rolling upgrade from 0.1.0rc1 and back, with both wheels in environments of their own.

Old workers and the old API stay under load while the new wheel migrates the database. New processes join, the
old ones leave, and then the code is downgraded on the new schema. No job is lost, and no attempt runs twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from deploy_files import find_free_port
from installed_holdfast import InstalledHoldfast
from wheel_environments import ROOT, build_wheel, create_environment

from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import wait_until

WAIT_TIMEOUT = timedelta(seconds=90)
OLD_COMMIT = "6700258d6b07210411cde6a4fcac64563729ce41"
SERVICE_KEY = "upgraded" * 5
APP = ROOT / "tests" / "support" / "upgraded_app.py"
GRAPH_STEPS: list[dict[str, Any]] = [
    {"type": "in_a_thread", "name": "first"},
    {"type": "sometimes_fails", "name": "last", "after": ["first"]},
]


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The virtual environments of the old and of the new wheel."""
    if subprocess.run(["git", "cat-file", "-e", OLD_COMMIT], cwd=ROOT, check=False).returncode:
        pytest.skip(f"the history of this checkout has no commit {OLD_COMMIT[:12]}")
    folder = tmp_path_factory.mktemp("upgrade")
    archive = subprocess.run(
        ["git", "archive", OLD_COMMIT, "src", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder / "source", filter="data")
    sources = {"old": folder / "source", "new": ROOT}
    return {
        name: create_environment(build_wheel(folder / name / "dist", source), "server", folder / name)
        for name, source in sources.items()
    }


@dataclass
class Version:
    """One version's processes on the database of the test."""

    name: str
    command: InstalledHoldfast
    port: int
    processes: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        with (self.command.folder / f"{self.name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                self.command.program, *arguments,
                cwd=self.command.folder, env=self.command.variables, stdout=log, stderr=log,
            )  # fmt: skip
        self.processes.append(process)
        return process

    async def start_all(self, worker_count: int) -> None:
        await self.start("api", "--port", str(self.port))
        for _ in range(worker_count):
            await self.start("worker", str(APP), "--concurrency", "10")

    async def stop_all(self) -> None:
        """End every process as a deployment does. Each has to finish its work and exit with code 0."""
        for process in self.processes:
            process.terminate()
        codes = [await process.wait() for process in self.processes]
        self.processes.clear()
        assert set(codes) == {0}, self.read_log()[-3000:]

    def check_processes(self) -> None:
        for process in self.processes:
            assert process.returncode is None, self.read_log()[-3000:]

    def read_log(self) -> str:
        return (self.command.folder / f"{self.name}.log").read_text()


@dataclass
class Load:
    """Submits work over the API of whichever version answers, and counts what ran."""

    versions: tuple[Version, ...]
    record: Path
    conn: Connection
    number: int = 0
    job_ids: dict[int, str] = field(default_factory=dict[int, str])
    letters: int = 0

    async def submit_until(self, stop: asyncio.Event) -> None:
        headers = {"authorization": f"Bearer {SERVICE_KEY}"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as http:
            while not stop.is_set():
                if self.number - self.count_ran() > 60:  # the workers are slower
                    await asyncio.sleep(0.05)
                    continue
                await self._submit(http)

    async def _submit(self, http: httpx.AsyncClient) -> None:
        """Submit one job under its key at every API in turn until one accepts it."""
        number = self.number + 1
        body: dict[str, Any] = {"type": "sometimes_fails", "args": {"number": number}, "queue": "upgraded"}
        if number % 7 == 0:
            steps = [{**step, "queue": "upgraded", "args": {"number": number}} for step in GRAPH_STEPS]
            body = {"type": "graph", "tasks": steps}
        elif number % 7 == 1:
            body["type"] = "has_a_child"
        for version in self.versions:
            try:
                response = await http.post(
                    f"http://127.0.0.1:{version.port}/api/jobs",
                    json=body, headers={"Idempotency-Key": f"job {number}"},
                )  # fmt: skip
            except httpx.TransportError:
                continue
            assert response.status_code in {200, 202}, (version.name, response.status_code, response.text)
            self.number = number
            self.job_ids[number] = response.json()["id"]
            if number % 5 == 0:
                await self._send_letter()
            return
        await asyncio.sleep(0.05)

    async def _send_letter(self) -> None:
        self.letters += 1
        await self.conn.execute(
            "select pgmq.send('upgraded_letters', $1::jsonb)", json.dumps({"number": self.letters})
        )

    def read_lines(self) -> Iterator[tuple[str, ...]]:
        if self.record.exists():
            yield from (tuple(line.split()) for line in self.record.read_text().splitlines())

    def count_ran(self, run_by: str | None = None) -> int:
        kinds = {"single", "parent"}
        return sum(line[1] in kinds and run_by in {None, line[0]} for line in self.read_lines())


@dataclass
class Rollout:
    """Both versions and the load, with the steps of an upgrade."""

    old: Version
    new: Version
    load: Load
    submitter: asyncio.Task[None]

    async def wait_for_work_by(self, version: Version, count: int = 30) -> None:
        """Wait until this version has run `count` more tasks of the load."""
        goal = self.load.count_ran(version.name) + count

        async def is_reached() -> bool:
            if self.submitter.done():
                self.submitter.result()
            version.check_processes()
            return self.load.count_ran(version.name) >= goal

        await wait_until(is_reached, within=WAIT_TIMEOUT, what=f"{count} tasks by {version.name}")


@pytest.mark.timeout(600)
async def test_rolling_upgrade_and_downgrade_lose_nothing(
    environments: dict[str, Path], empty_url: Secret, tmp_path: Path
) -> None:
    versions = [
        Version(name, _install(environments[name], name, tmp_path, empty_url), find_free_port())
        for name in ("old", "new")
    ]
    old, new = versions
    code, output = await old.command.run("migrate")
    assert code == 0, output
    conn: Connection = await asyncpg.connect(empty_url.reveal())
    load = Load((old, new), tmp_path / "record", conn)
    stop = asyncio.Event()
    try:
        await old.start_all(2)
        await _wait_for_queue(conn, old)
        rollout = Rollout(old, new, load, asyncio.create_task(load.submit_until(stop)))
        await _upgrade(rollout)
        await _downgrade(rollout)
        stop.set()
        await rollout.submitter
        await _wait_until_drained(conn)
        await old.stop_all()
    finally:
        for process in (*old.processes, *new.processes):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    await _assert_nothing_lost_or_repeated(conn, load)
    for version in versions:
        assert "Traceback" not in version.read_log().replace("a fault on purpose", "")
    await conn.close()


def _install(environment: Path, name: str, folder: Path, url: Secret) -> InstalledHoldfast:
    home = folder / name
    home.mkdir()
    variables = {
        "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(home), "RUN_BY": name,
        "HOLDFAST_SERVICE_KEY": SERVICE_KEY, "RECORD": str(folder / "record"),
    }  # fmt: skip
    return InstalledHoldfast(environment, home, variables)


async def _upgrade(rollout: Rollout) -> None:
    """Migrate under load, let both versions work side by side, and stop the old one."""
    old, new = rollout.old, rollout.new
    await rollout.wait_for_work_by(old)
    code, output = await new.command.run("worker", str(APP))
    assert code == 4, output
    assert "Run: holdfast migrate" in output
    for command in (["migrate", "plan"], ["migrate"]):
        code, output = await new.command.run(*command)
        assert code == 0, output
    await rollout.wait_for_work_by(old)
    await new.start_all(2)
    await rollout.wait_for_work_by(new)
    await rollout.wait_for_work_by(old)
    await old.stop_all()
    await rollout.wait_for_work_by(new)


async def _downgrade(rollout: Rollout) -> None:
    """Replace the new processes with old ones. The schema stays, and the old code leaves it alone."""
    old, new = rollout.old, rollout.new
    await old.start_all(2)
    await rollout.wait_for_work_by(old)
    await new.stop_all()
    await rollout.wait_for_work_by(old)
    code, output = await old.command.run("migrate")
    assert code == 4, output
    assert "newer than this code" in output
    await rollout.wait_for_work_by(old)


async def _wait_for_queue(conn: Connection, version: Version) -> None:
    async def exists() -> bool:
        version.check_processes()
        return bool(
            await conn.fetchval(
                "select exists (select from pgmq.list_queues() where queue_name = 'upgraded_letters')"
            )
        )

    await wait_until(exists, within=WAIT_TIMEOUT, what="the queue of letters")


async def _wait_until_drained(conn: Connection) -> None:
    async def is_drained() -> bool:
        return not await conn.fetchval(
            "select (select count(*) from holdfast.tasks where status in ('waiting', 'ready', 'running', "
            "'scheduled')) + (select count(*) from pgmq.q_upgraded_letters)"
        )

    await wait_until(is_drained, within=WAIT_TIMEOUT, what="the end of all work")


async def _assert_nothing_lost_or_repeated(conn: Connection, load: Load) -> None:
    rows = await conn.fetch(
        "select holdfast.get_job_status(j) as status from unnest($1::uuid[]) as j",
        list(load.job_ids.values()),
    )
    assert Counter(row["status"] for row in rows) == {"succeeded": len(load.job_ids)}
    lines = [line for line in load.read_lines() if line[1] != "tick"]
    ran = Counter(line[1:] for line in lines)
    assert {line: count for line, count in ran.items() if count != 1} == {}
    expected = set[tuple[str, ...]]()
    for number in range(1, load.number + 1):
        kinds = {0: ("thread", "single"), 1: ("parent", "child")}.get(number % 7, ("single",))
        expected |= {(kind, str(number), "1") for kind in kinds}
        if number % 10 == 0 and "single" in kinds:
            expected.add(("single", str(number), "2"))
    expected |= {("letter", str(number), "1") for number in range(1, load.letters + 1)}
    assert set(ran) == expected
    assert {line[0] for line in load.read_lines() if line[1] == "tick"} == {"old", "new"}
