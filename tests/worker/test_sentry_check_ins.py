"""Check-ins of schedules with Sentry: runs that succeed, fail, are retried, and a Sentry that is down."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sentry_server import SentryServer, run_sentry_server
from worker_processes import WorkerProcesses

from holdfast.engine.connection import Connection
from holdfast.engine.schedules import ScheduledRun
from holdfast.settings import Secret
from holdfast.testing import wait_until
from holdfast.worker.sentry_check_ins import build_monitor_config, build_monitor_slug

APP = Path(__file__).parents[1] / "support" / "checked_in_app.py"
WAIT_TIMEOUT = timedelta(seconds=100)


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> Generator[SentryServer]:
    with run_sentry_server() as server:
        monkeypatch.setenv("HOLDFAST_SENTRY_DSN", server.dsn)
        yield server


@pytest.fixture
async def workers(
    url: Secret, conn: Connection, tmp_path: Path, sentry: SentryServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[WorkerProcesses]:
    monkeypatch.setenv("FAIL_FILE", str(tmp_path / "fail"))
    processes = WorkerProcesses(url, tmp_path, APP)
    await processes.start()

    async def are_stored() -> bool:
        return bool(await conn.fetchval("select count(*) = 4 from holdfast.schedules"))

    await wait_until(are_stored, within=WAIT_TIMEOUT, what="the schedules")
    yield processes
    await processes.stop_all()


async def run_schedule(conn: Connection, name: str) -> str:
    """Run a schedule now, and return the id of its check-in."""
    return UUID(await conn.fetchval("select holdfast.run_schedule($1) ->> 'id'", name)).hex


async def wait_for_job(conn: Connection, check_in: str, status: str) -> None:
    async def has_ended() -> bool:
        return await conn.fetchval("select holdfast.get_job_status($1)", UUID(check_in)) == status  # type: ignore[no-any-return]

    await wait_until(has_ended, within=WAIT_TIMEOUT, what=f"a job that has {status}")


async def wait_for_check_ins(sentry: SentryServer, slug: str, check_in: str, *statuses: str) -> None:
    def list_statuses() -> list[str]:
        return [each["status"] for each in sentry.list_check_ins(slug) if each["check_in_id"] == check_in]

    await wait_until(
        lambda: list_statuses() == list(statuses),
        within=WAIT_TIMEOUT,
        what=f"check-ins {statuses} of {slug}, not {list_statuses()}",
    )


@pytest.mark.timeout(300)
async def test_runs_of_schedules_check_in_with_sentry(
    conn: Connection, sentry: SentryServer, workers: WorkerProcesses
) -> None:
    run = await run_schedule(conn, "Clean up!")
    await wait_for_check_ins(sentry, "clean-up", run, "in_progress", "ok")
    assert [each["monitor_config"] for each in sentry.list_check_ins("clean-up")] == 2 * [
        {"schedule": {"type": "crontab", "value": "0 3 * * *"}, "timezone": "Europe/Madrid"}
    ]

    (workers.folder / "fail").touch()
    run = await run_schedule(conn, "Clean up!")
    await wait_for_check_ins(sentry, "clean-up", run, "in_progress", "error")
    await wait_until(
        lambda: any(kind == "event" for kind, _ in sentry.items), within=WAIT_TIMEOUT, what="the exception"
    )
    (workers.folder / "fail").unlink()

    # A run is one check-in, however many attempts and tasks it has.
    run = await run_schedule(conn, "later")
    await wait_for_check_ins(sentry, "later", run, "in_progress", "ok")
    run = await run_schedule(conn, "chain")
    await wait_for_check_ins(sentry, "chain", run, "in_progress", "ok")

    run = await run_schedule(conn, "fast")
    await wait_for_job(conn, run, "succeeded")
    put_schedule = "select holdfast.put_schedule('theirs', $1::jsonb, p_cron => '@daily', p_owner => 'ann')"
    await conn.execute(put_schedule, '{"type": "clean_up"}')
    run = await run_schedule(conn, "theirs")
    await wait_for_job(conn, run, "succeeded")
    slugs = {body["monitor_slug"] for kind, body in sentry.items if kind == "check_in"}
    assert slugs == {"clean-up", "later", "chain"}  # not of 90 seconds, nor of an end user

    # The end of the last run is reported before the worker has stopped.
    run = await run_schedule(conn, "later")
    await wait_for_job(conn, run, "succeeded")
    await workers.stop_all()
    await wait_for_check_ins(sentry, "later", run, "in_progress", "ok")
    assert "does not check in with Sentry" in (workers.folder / "worker0.log").read_text()


@pytest.mark.timeout(200)
async def test_a_sentry_that_is_down_stops_no_run(
    conn: Connection, sentry: SentryServer, workers: WorkerProcesses
) -> None:
    sentry.answer = 503
    run = await run_schedule(conn, "Clean up!")
    await wait_until(lambda: sentry.refused, within=WAIT_TIMEOUT, what="a check-in that was refused")
    await wait_for_job(conn, run, "succeeded")


@pytest.mark.timeout(200)
async def test_check_ins_can_be_switched_off(
    conn: Connection, sentry: SentryServer, workers: WorkerProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    await workers.stop_all()
    monkeypatch.setenv("HOLDFAST_SENTRY_CHECK_INS", "off")
    await workers.start()
    await wait_for_job(conn, await run_schedule(conn, "Clean up!"), "succeeded")
    await workers.stop_all()
    assert sentry.items == []


@pytest.mark.parametrize(
    ("cron", "every_s", "expected"),
    [
        ("*/5 * * * *", None, {"type": "crontab", "value": "*/5 * * * *"}),
        (None, 3600.0, {"type": "interval", "value": 60, "unit": "minute"}),
        (None, 90.0, None),
        (None, 1.0, None),
    ],
)
def test_monitor_config(cron: str | None, every_s: float | None, expected: dict[str, object] | None) -> None:
    run = ScheduledRun(cron=cron, every_s=every_s, timezone="UTC", status=None)
    assert build_monitor_config(run) == (expected and {"schedule": expected, "timezone": "UTC"})


@pytest.mark.parametrize(
    ("name", "slug"),
    [("nightly", "nightly"), ("Clean up!", "clean-up"), ("a/b", "a-b"), ("x" * 80, "x" * 50)],
)
def test_monitor_slug(name: str, slug: str) -> None:
    assert build_monitor_slug(name) == slug
