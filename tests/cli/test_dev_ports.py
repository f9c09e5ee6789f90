"""Ports of `holdfast dev` and `demo`: a port in use, and several commands that start at the same moment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from terminal import Terminal

from holdfast.devtools.api_socket import DEFAULT_PORT, get_port, open_api_socket
from holdfast.errors import HoldfastError
from holdfast.settings import Secret, Settings

APP_SOURCE = """
from holdfast import task

@task
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def lines() -> list[str]:
    return []


def take_default_port(stack: ExitStack) -> None:
    with suppress(OSError):  # another program of this machine may have it, which is what the test needs
        stack.enter_context(socket.create_server(("127.0.0.1", DEFAULT_PORT)))


def test_next_port_is_used_and_named_if_the_default_is_in_use(lines: list[str]) -> None:
    with ExitStack() as stack:
        take_default_port(stack)
        listener = stack.enter_context(open_api_socket(Settings(), None, lines.append))
        assert get_port(listener) > DEFAULT_PORT
        assert lines == [
            f" Port {DEFAULT_PORT} is in use by another program. The API uses port {get_port(listener)}."
        ]


@pytest.mark.parametrize("chosen_by", ["option", "setting"])
def test_port_that_the_user_chose_is_not_replaced(chosen_by: str, lines: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = get_port(other)
        settings = Settings(api_port=port) if chosen_by == "setting" else Settings()
        with pytest.raises(HoldfastError, match=f"Another program uses port {port}") as caught:
            open_api_socket(settings, port if chosen_by == "option" else None, lines.append)
    assert "HOLDFAST_API_PORT" in (caught.value.fix or "")
    assert lines == []


def test_sockets_opened_at_the_same_moment_have_different_ports(lines: list[str]) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        listeners = list(pool.map(lambda _: open_api_socket(Settings(), None, lines.append), range(16)))
        for listener in listeners:
            stack.enter_context(listener)
        assert len({get_port(listener) for listener in listeners}) == 16


@pytest.mark.timeout(200)
def test_two_at_the_same_moment_both_serve(url: Secret, tmp_path: Path) -> None:
    sessions: list[Terminal] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(APP_SOURCE)
        environ = {"HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path / name / "home")}
        sessions.append(Terminal("dev", "app.py", environ=environ, folder=tmp_path / name))
    try:
        addresses = [dev.wait_for_text(r"api +(http://127.0.0.1:\d+)/api", within=120)[1] for dev in sessions]
        assert len(set(addresses)) == 2
        for dev in sessions:
            dev.wait_for_text("keys: ")
        for dev, address in zip(sessions, addresses, strict=True):  # the API restarts on the same port
            before = len(dev.text)
            dev.press("r")
            dev.wait_for_text("restarting API and workers", after=before)
            with urllib.request.urlopen(f"{address}/healthz", timeout=60) as answer:
                assert answer.status == 200
            dev.press("q")
            assert dev.wait_for_end() == 0
    finally:
        for dev in sessions:
            dev.close()


def test_port_in_use_that_was_asked_for_is_an_error(url: Secret, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP_SOURCE)
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = [sys.executable, "-m", "holdfast", "dev", "app.py", "--port", str(get_port(other))]
        environ = {"HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path)}
        ended = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 1
    assert "Another program uses port" in ended.stderr
    assert "Traceback" not in ended.stderr
