"""`holdfast dev` in a terminal, with real processes: reload, kill -9, recovery, and nothing left behind."""

from __future__ import annotations

import urllib.request
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest
from terminal import Terminal

from holdfast.cli.root import run_command_line
from holdfast.devtools.dev import is_local_database
from holdfast.settings import Secret
from holdfast.testing import wait_until

APP_SOURCE = """
from holdfast import task

@task(queue="mine")
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def dev(url: Secret, tmp_path: Path) -> Generator[Terminal]:
    (tmp_path / "app.py").write_text(APP_SOURCE)
    environ = {"HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path / "home")}
    terminal = Terminal("dev", "app.py", "--samples", "--port", "0", environ=environ, folder=tmp_path)
    yield terminal
    terminal.close()


def list_children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.timeout(300)
async def test_development_session(dev: Terminal, url: Secret, tmp_path: Path) -> None:
    dev.wait_for_text("keys: ", within=90)
    assert url.reveal() not in dev.text
    assert "worker     app.py, reload on save" in dev.text
    dev.wait_for_text("worker started: greet")
    address = dev.wait_for_text(r"api +(http://127.0.0.1:\d+)/api")[1]
    with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
        assert answer.status == 200
    link = dev.wait_for_text(r"log in once: (http\S+)")[1]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(link, timeout=30) as page:
        assert b"<h1" in page.read()
    children = list_children(dev.process.pid)
    assert len(children) == 3

    dev.wait_for_text("✕ always_fail .* ValueError: a sample that cannot succeed")
    dev.wait_for_text("✓ fail_then_succeed .* attempt 3")
    before = len(dev.text)
    dev.press("l")
    dev.wait_for_text("worker log: on", after=before)
    dev.press("s")
    dev.wait_for_text("submitted 12 jobs", after=before)
    dev.wait_for_text("  samples: .* task.finished", after=before)
    dev.press("l")
    dev.wait_for_text("worker log: off", after=before)
    dev.press("o")
    dev.wait_for_text(r"open http://127.0.0.1:\d+/dashboard/in\?t=", after=before)
    dev.wait_for_text("● wait_seconds", after=before)
    before = len(dev.text)
    dev.press("k")
    dev.wait_for_text(r"killed with -9: worker, samples, with \d+ running jobs?", after=before)
    dev.wait_for_text("recovered: wait_seconds .* runs again", after=before, within=90)
    assert list_children(dev.process.pid) & children != children
    children |= list_children(dev.process.pid)

    (tmp_path / "app.py").write_text(APP_SOURCE + "\nthis is no python\n")
    dev.wait_for_text("app.py changed: restarting the worker")
    dev.wait_for_text("the worker exited: .*SyntaxError")
    before = len(dev.text)
    (tmp_path / "app.py").write_text(APP_SOURCE)
    dev.wait_for_text("app.py changed: restarting the worker", after=before)
    dev.wait_for_text("worker started: greet", after=before)
    children |= list_children(dev.process.pid)
    dev.press("q")
    assert dev.wait_for_end() == 0
    assert "Stopped all processes" in dev.text
    assert "Traceback" not in dev.text
    assert all(has_ended(child) for child in children)


@pytest.mark.timeout(200)
async def test_sigkill_leaves_no_process_running(dev: Terminal) -> None:
    dev.wait_for_text("worker started: greet", within=90)
    children = list_children(dev.process.pid)
    dev.process.kill()
    dev.process.wait()
    await wait_until(lambda: all(has_ended(child) for child in children), within=timedelta(seconds=60))


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("postgresql://u:p@127.0.0.1:5432/x", True),
        ("postgresql://localhost/x", True),
        ("postgresql:///x?host=/run/postgresql", True),
        ("postgresql://u@db.example:5432/x", False),
        ("postgresql:///x?host=db.example", False),
        ("postgresql://127.0.0.1.example/x", False),
    ],
)
def test_is_local_database(url: str, local: bool) -> None:
    assert is_local_database(url) is local


def test_remote_database_needs_confirmation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--database-url", "postgresql://u:secret@db.example/x", "dev", "--samples"]) == 5
    error = capsys.readouterr().err
    assert "not on this machine" in error
    assert "secret" not in error


async def test_nothing_to_run_is_a_usage_error(url: Secret, tmp_path: Path) -> None:
    environ = {"HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path)}
    for options in ((), ("--no-samples",)):  # no samples in the user's own database unless asked for
        terminal = Terminal("dev", *options, environ=environ, folder=tmp_path)
        assert terminal.wait_for_end() == 2
        assert "There is nothing to run" in terminal.text
        terminal.close()
