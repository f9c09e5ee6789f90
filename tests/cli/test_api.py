from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from holdfast.cli.api import load_or_create_service_key, open_server_socket, refuse_non_loopback_host
from holdfast.cli.root import run_command_line
from holdfast.errors import HoldfastError, RefusedError
from holdfast.settings import Secret
from holdfast.testing import wait_until

START_TIMEOUT = timedelta(seconds=60)  # a process starts slowly on a busy machine


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_public_address_needs_authentication(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["api", "--host", host]) == 5
    assert "HOLDFAST_SERVICE_KEY" in capsys.readouterr().err
    with pytest.raises(RefusedError):
        refuse_non_loopback_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_address_needs_no_authentication(host: str) -> None:
    refuse_non_loopback_host(host)
    assert host


def test_busy_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(HoldfastError, match=f"127.0.0.1:{port}"):
            open_server_socket("127.0.0.1", port)
        assert run_command_line(["api", "--port", str(port)]) == 1
    assert "--port" in capsys.readouterr().err


def test_local_service_key_is_created_once_and_private(tmp_path: Path) -> None:
    first = load_or_create_service_key(tmp_path)
    assert load_or_create_service_key(tmp_path).reveal() == first.reveal()
    assert (tmp_path / "service-key").stat().st_mode & 0o777 == 0o600
    assert len(first.reveal()) > 40


async def test_api_closes_slow_connections_and_ignores_forwarded_addresses(
    url: Secret, tmp_path: Path
) -> None:
    environ = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": url.reveal(),
        "HOLDFAST_SERVICE_KEY": "hunter2hunter2",
        "HOLDFAST_HOME": str(tmp_path),
        "HOLDFAST_API_HEADER_TIMEOUT": "2s",
    }
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "api", "--port", "0"], env=environ, stdout=out, stderr=out
        )
    try:
        address: Callable[[], re.Match[str] | None] = lambda: re.search(r"url=(http\S+)", log.read_text())  # noqa: E731
        base = (await wait_until(address, within=START_TIMEOUT))[1]
        half_open = socket.create_connection((httpx.URL(base).host, httpx.URL(base).port or 0), 60)
        half_open.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-half: ")
        async with httpx.AsyncClient(base_url=base, headers={"sec-fetch-site": "same-origin"}) as api:
            # A client on this machine must not choose the address that the limit of logins counts.
            statuses = [
                (
                    await api.post(
                        "/dashboard/login",
                        data={"key": "hf_wrong"},
                        headers={"x-forwarded-for": f"192.0.2.{number}"},
                    )
                ).status_code
                for number in range(11)
            ]
        assert statuses == [403] * 10 + [429]
        assert await asyncio.to_thread(half_open.recv, 1) == b""
        half_open.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.long
async def test_api_keeps_idle_connections_open_for_load_balancers(url: Secret, tmp_path: Path) -> None:
    environ = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "api", "--port", "0"], env=environ, stdout=out, stderr=out
        )
    try:
        address: Callable[[], re.Match[str] | None] = lambda: re.search(r"url=(http\S+)", log.read_text())  # noqa: E731
        base = httpx.URL((await wait_until(address, within=START_TIMEOUT))[1])
        reader, writer = await asyncio.open_connection(base.host, base.port)
        for idle_s in (8, 0):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            await asyncio.sleep(idle_s)  # uvicorn's own limit is five seconds
            assert not reader.at_eof()
        writer.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def test_api_stops_on_sigterm_and_logs_no_secret(url: Secret, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": url.reveal(),
        "HOLDFAST_SERVICE_KEY": "hunter2hunter2",
        "HOLDFAST_HOME": str(tmp_path),
    }
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "--log-level", "debug", "api", "--port", "0"],
            env=environ, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        address: Callable[[], re.Match[str] | None] = lambda: re.search(r"url=(http\S+)", log.read_text())  # noqa: E731
        base = (await wait_until(address, within=START_TIMEOUT))[1]
        async with httpx.AsyncClient(base_url=base) as api:
            assert (await api.get("/readyz")).json() == {"status": "ready"}
            assert (await api.get("/api/jobs/x")).status_code == 401
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert process.returncode == 0
    assert "api.request_completed" in log.read_text()
    assert "hunter2" not in log.read_text()


async def test_api_stops_when_its_parent_ends(url: Secret, tmp_path: Path) -> None:
    environ = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "api", "--port", "0", "--exit-with-parent"],
        env=environ, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin
    process.stdin.close()
    await wait_until(lambda: process.poll() is not None, within=START_TIMEOUT)


async def test_api_serves_job_types_and_systems(url: Secret, tmp_path: Path) -> None:
    environ = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_SERVICE_KEY": "hunter2hunter2",
               "HOLDFAST_HOME": str(tmp_path)}  # fmt: skip
    book_app = Path(__file__).resolve().parents[1] / "support" / "book_app.py"
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "api", str(book_app), "--port", "0", "--system", "exports"],
            env=environ, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        address: Callable[[], re.Match[str] | None] = lambda: re.search(r"url=(http\S+)", log.read_text())  # noqa: E731
        base = (await wait_until(address, within=START_TIMEOUT))[1]
        headers = {"authorization": "Bearer hunter2hunter2"}
        async with httpx.AsyncClient(base_url=base, headers=headers) as api:
            started = await api.post("/api/jobs/start", json={"type": "book"})
            assert started.status_code == 202, started.text
            assert (await api.get("/dashboard/", follow_redirects=True)).status_code < 500
    finally:
        process.terminate()
        process.wait(60)
    assert process.returncode == 0, log.read_text()


def test_missing_system_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["api", "--system", "nothing"]) == 3
    assert "nothing" in capsys.readouterr().err
