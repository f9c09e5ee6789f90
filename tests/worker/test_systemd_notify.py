"""The messages to systemd of a service: start, watchdog and stop."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from systemd_socket import NotifySocket
from worker_processes import WorkerProcesses

from holdfast.settings import Secret
from holdfast.testing import wait_until
from holdfast.worker import systemd_notify
from holdfast.worker.systemd_notify import SystemdNotifier, create_notifier

START_TIMEOUT = timedelta(seconds=60)  # a process starts slowly on a busy machine


@asynccontextmanager
async def send_signs_of_life(notifier: SystemdNotifier) -> AsyncGenerator[None]:
    sender = asyncio.create_task(notifier.send_signs_of_life())
    try:
        yield
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


async def test_start_is_extended_until_ready_and_then_the_watchdog_is_fed(tmp_path: Path) -> None:
    with NotifySocket(tmp_path, watchdog_s=0.06) as service_manager:
        notifier = create_notifier(dict(service_manager.environment))
        async with send_signs_of_life(notifier):
            await wait_until(lambda: service_manager.has_received("EXTEND_TIMEOUT_USEC=60000000"))
            assert not service_manager.has_received("WATCHDOG=1")
            notifier.mark_ready("Running\ntasks.")
            await wait_until(lambda: service_manager.has_received("WATCHDOG=1"))
        assert service_manager.has_received("STATUS=Running tasks.")
        assert service_manager.messages[1].startswith("READY=1\n")


async def test_blocked_event_loop_sends_nothing(tmp_path: Path) -> None:
    with NotifySocket(tmp_path, watchdog_s=0.06) as service_manager:
        notifier = create_notifier(dict(service_manager.environment))
        async with send_signs_of_life(notifier):
            notifier.mark_ready("Running tasks.")
            await wait_until(lambda: service_manager.has_received("WATCHDOG=1"))
            service_manager.messages.clear()
            time.sleep(0.3)  # blocks the loop for five intervals of the watchdog
            assert not service_manager.has_received("WATCHDOG=1")
            await wait_until(lambda: service_manager.has_received("WATCHDOG=1"))


def test_stopping_is_sent_once(tmp_path: Path) -> None:
    with NotifySocket(tmp_path) as service_manager:
        notifier = create_notifier(dict(service_manager.environment))
        notifier.mark_stopping("Finishing running tasks.")
        notifier.mark_stopping("Stopped.")
        assert service_manager.has_received("STOPPING=1")
        assert len(service_manager.messages) == 1


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),  # meant for another process
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_variables_of_systemd_are_read_and_removed(
    variables: dict[str, str], watchdog_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals = list[float | None]()
    monkeypatch.setattr(
        systemd_notify, "SystemdNotifier", lambda _, interval: intervals.append(interval)  # the constructor
    )  # fmt: skip
    environment = {"NOTIFY_SOCKET": "/run/systemd/notify", "PATH": "/bin", **variables}
    create_notifier(environment)
    assert intervals == [watchdog_s]
    assert environment == {"PATH": "/bin"}  # programs that the service starts must not speak for it


async def test_abstract_socket_is_used() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0holdfast-test-{os.getpid()}")
        create_notifier({"NOTIFY_SOCKET": f"@holdfast-test-{os.getpid()}"}).mark_ready("Ready.")
        assert receiver.recv(100) == b"READY=1\nSTATUS=Ready."


async def test_missing_socket_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = create_notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    notifier.mark_ready("Ready.")
    notifier.mark_stopping("Stopped.")
    assert len([record for record in caplog.records if "NOTIFY_SOCKET" in record.message]) == 1


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["one process", "two processes"])
async def test_worker_reports_to_systemd(
    url: Secret, tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with NotifySocket(tmp_path, watchdog_s=1) as service_manager:
        for name, value in service_manager.environment.items():
            monkeypatch.setenv(name, value)
        processes = WorkerProcesses(url, tmp_path)
        worker = await processes.start("--grace", "1s", *options)
        await wait_until(lambda: service_manager.has_received("WATCHDOG=1"), within=START_TIMEOUT)
        ready = [message for message in service_manager.messages if message.startswith("READY=1")]
        worker.terminate()
        assert await worker.wait() == 0
        assert service_manager.has_received("STOPPING=1")
        assert len(ready) == 1  # the processes of a supervisor say nothing themselves


async def test_api_reports_to_systemd(url: Secret, tmp_path: Path) -> None:
    with NotifySocket(tmp_path, watchdog_s=1) as service_manager:
        api = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "api", "--port", "0",
            cwd=tmp_path,
            env={**os.environ, **service_manager.environment, "DATABASE_URL": url.reveal()},
        )  # fmt: skip
        await wait_until(lambda: service_manager.has_received("WATCHDOG=1"), within=START_TIMEOUT)
        assert service_manager.has_received("READY=1")
        api.terminate()
        assert await api.wait() == 0
        assert service_manager.has_received("STOPPING=1")
