"""Workers wait for their database, and report an outage with one line when it begins and one when it ends."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from switchable_proxy import SwitchableProxy, run_switchable_proxy
from worker_processes import WorkerProcesses

from holdfast import Client, Worker, task, telemetry
from holdfast.engine import availability
from holdfast.engine.availability import DatabaseAvailability, describe_connect_error
from holdfast.engine.connection import Database
from holdfast.errors import DatabaseLoginError, DatabaseUnavailableError, SchemaMissingError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until
from holdfast.worker import background
from holdfast.worker.background import BackgroundService, ServiceFailureReporter


@task(queue="nothing")
async def quiet() -> None:
    """Never submitted."""


@pytest.fixture
async def proxy(url: Secret) -> AsyncGenerator[SwitchableProxy]:
    async with run_switchable_proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def distant_workers(proxy: SwitchableProxy, tmp_path: Path) -> AsyncGenerator[WorkerProcesses]:
    """Worker processes that reach their database through the proxy, at the default log level."""
    workers = WorkerProcesses(proxy.url, tmp_path, log_level="info")
    yield workers
    for process in workers.started:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def read_log_lines(workers: WorkerProcesses, word: str = "") -> list[str]:
    text = (workers.folder / "worker0.log").read_text()
    return [line for line in text.splitlines() if word in line]


async def test_worker_waits_for_its_database_and_reports_outages_once(
    distant_workers: WorkerProcesses, proxy: SwitchableProxy, client: Client
) -> None:
    from recorder_app import record_number  # noqa: PLC0415  (needs RECORD only when it runs)

    process = await distant_workers.start()
    await wait_until(lambda: read_log_lines(distant_workers, "connection_failed"))
    await proxy.open()
    await wait_until(lambda: read_log_lines(distant_workers, "worker.started"))
    first = await client.submit(record_number(1))
    assert await first.result() == 1

    proxy.close()
    await wait_until(lambda: len(read_log_lines(distant_workers, "connection_failed")) == 2)
    second = await client.submit(record_number(2))
    await proxy.open()
    assert await second.result() == 2
    await wait_until(lambda: len(read_log_lines(distant_workers, "connection_restored")) == 2)

    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    lines = read_log_lines(distant_workers)
    outages = [line.split()[2] for line in lines if " database." in line]
    assert outages == ["database.connection_failed", "database.connection_restored"] * 2
    assert not [line for line in lines if "task.finished" in line or "Traceback" in line]
    assert max(map(len, lines)) < 300
    assert "reason=connection refused" in read_log_lines(distant_workers, "connection_failed")[0]


async def test_no_wait_exits_with_code_6(distant_workers: WorkerProcesses) -> None:
    process = await distant_workers.start("--no-wait")
    assert await process.wait() == 6


async def test_worker_that_waits_for_its_database_can_be_stopped(distant_workers: WorkerProcesses) -> None:
    process = await distant_workers.start()
    await wait_until(lambda: read_log_lines(distant_workers, "connection_failed"))
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_wrong_password_is_not_waited_for(url: Secret, settings: Settings) -> None:
    missing = Secret(url.reveal().rpartition("/")[0] + "/no_such_database")
    with pytest.raises(DatabaseLoginError):
        async with Worker(Client(missing.reveal(), settings=settings), tasks=[quiet]):
            pass


async def test_missing_schema_is_an_error(empty_url: Secret, settings: Settings) -> None:
    with pytest.raises(SchemaMissingError):
        async with Worker(Client(empty_url.reveal(), settings=settings), tasks=[quiet]):
            pass


def collect_names(availability: DatabaseAvailability, *steps: str) -> list[str]:
    names: list[str] = []
    with telemetry.subscription(lambda name, _: names.append(name)):
        for step in steps:
            if step == "fail":
                availability.record_failure(ConnectionRefusedError(111, "x"))
            else:
                availability.record_success()
    return names


def test_outage_is_one_event_at_its_begin_and_one_at_its_end() -> None:
    record = DatabaseAvailability("here")
    names = collect_names(record, "ok", "fail", "fail", "fail", "ok", "ok", "fail")
    assert names == [
        "database.connection_failed",
        "database.connection_restored",
        "database.connection_failed",
    ]


def test_long_outage_has_reminders(monkeypatch: pytest.MonkeyPatch) -> None:
    record = DatabaseAvailability("here")
    assert collect_names(record, "fail", "fail") == ["database.connection_failed"]
    monkeypatch.setattr(availability, "REMINDER_INTERVAL_S", 0.0)
    assert collect_names(record, "fail", "ok") == [
        "database.still_unreachable",
        "database.connection_restored",
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 5432)"), "connection refused"),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] x"),
            "connection refused",
        ),
        (TimeoutError(), "no response in time"),
    ],
)
def test_reasons_are_free_of_driver_internals(error: Exception, text: str) -> None:
    assert describe_connect_error(error) == text


def test_failures_of_a_service_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    reporter = ServiceFailureReporter("fetcher")
    with telemetry.subscription(lambda name, _: names.append(name)):
        reporter.report_failure(DatabaseUnavailableError("Away."))  # reported by whoever connects
        reporter.report_success()
        for _ in range(3):
            reporter.report_failure("The role may not do this.")
        monkeypatch.setattr(background, "FAILURE_REPORT_INTERVAL_S", 0.0)
        reporter.report_failure("The role may not do this.")
        reporter.report_success()
    assert names == ["worker.service_failed", "worker.service_failed", "worker.service_recovered"]


class FailingService(BackgroundService):
    rounds = 0

    async def run_round(self) -> None:
        self.rounds += 1
        raise DatabaseUnavailableError("Away.")


async def test_service_survives_an_outage_of_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a thousand failures the pause must still be a number."""
    monkeypatch.setattr(background, "MIN_RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(background, "MAX_RETRY_PAUSE_S", 0.0)
    service = FailingService()
    service.start()
    await wait_until(lambda: service.rounds > 1100)
    await service.stop()
    assert isinstance(service.last_error, DatabaseUnavailableError)


async def test_broken_connection_that_is_replaced_is_no_outage(db: Database) -> None:
    names: list[str] = []
    with telemetry.subscription(lambda name, _: names.append(name)):
        with pytest.raises(DatabaseUnavailableError):
            async with db.connection() as connection:
                await connection.execute("select pg_terminate_backend(pg_backend_pid())")
        async with db.connection() as connection:
            assert await connection.fetchval("select 1") == 1
    assert names == []
