"""Check-ins of schedules with Sentry: a run that succeeds, one that fails, and a Sentry that is down."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from pathlib import Path

import pytest
from sentry_server import SentryServer, run_sentry_server
from worker_processes import WorkerProcesses

from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentry_check_ins.py"
RUN = "select holdfast.run_schedule('clean-up')"
WAIT_TIMEOUT = timedelta(seconds=100)


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> Generator[SentryServer]:
    with run_sentry_server() as server:
        monkeypatch.setenv("HOLDFAST_SENTRY_DSN", server.dsn)
        yield server


@pytest.fixture
async def workers(
    url: Secret, tmp_path: Path, sentry: SentryServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[WorkerProcesses]:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("SCRATCH_FOLDER", str(tmp_path / "scratch"))
    processes = WorkerProcesses(url, tmp_path, EXAMPLE)
    await processes.start()
    yield processes
    for process in processes.started:
        process.terminate()
        await process.wait()


@pytest.mark.timeout(240)
async def test_runs_of_a_schedule_check_in_with_sentry(
    conn: Connection, sentry: SentryServer, workers: WorkerProcesses
) -> None:
    def find(status: str) -> list[str]:
        return [each["check_in_id"] for each in sentry.list_check_ins("clean-up") if each["status"] == status]

    async def exists() -> bool:
        return bool(await conn.fetchval("select exists (select from holdfast.schedules)"))

    await wait_until(exists, within=WAIT_TIMEOUT, what="the schedule")
    await conn.execute(RUN)
    await wait_until(lambda: find("ok"), within=WAIT_TIMEOUT, what="a check-in of a run that succeeded")
    first = sentry.list_check_ins("clean-up")[0]
    assert first["status"] == "in_progress"
    assert first["monitor_config"]["schedule"] == {"type": "crontab", "value": "0 3 * * *"}
    assert find("ok")[0] in find("in_progress")

    (workers.folder / "scratch").rmdir()
    await conn.execute(RUN)
    await wait_until(lambda: find("error"), within=WAIT_TIMEOUT, what="a check-in of a run that failed")
    assert find("error")[0] in find("in_progress")
    await wait_until(
        lambda: any(kind == "event" for kind, _ in sentry.items), within=WAIT_TIMEOUT, what="the exception"
    )

    (workers.folder / "scratch").mkdir()
    sentry.answer = 503
    await conn.execute(RUN)
    await wait_until(lambda: sentry.refused, within=WAIT_TIMEOUT, what="a check-in that was refused")

    async def has_ended() -> bool:
        count = "select count(*) from holdfast.history where status = 'succeeded'"
        return bool(await conn.fetchval(count) == 2)

    await wait_until(has_ended, within=WAIT_TIMEOUT, what="a run while Sentry is down")
