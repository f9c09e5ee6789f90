"""`holdfast dev` in a terminal, with real processes: reload, kill -9, recovery, and nothing left behind."""

from __future__ import annotations

import urllib.request
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest
from terminal import Terminal

from holdfast.cli.root import run
from holdfast.devtools.dev import is_near
from holdfast.settings import Secret
from holdfast.testing import eventually

APP = """
from holdfast import task

@task(queue="mine")
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def dev(url: Secret, tmp_path: Path) -> Generator[Terminal]:
    (tmp_path / "app.py").write_text(APP)
    environ = {"HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path / "home")}
    terminal = Terminal("dev", "app.py", "--port", "0", environ=environ, folder=tmp_path)
    yield terminal
    terminal.close()


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.timeout(300)
async def test_a_session_of_development(dev: Terminal, url: Secret, tmp_path: Path) -> None:
    dev.until("keys: ", within=90)
    assert url.reveal() not in dev.text
    assert "worker     app.py, reload on save" in dev.text
    dev.until("worker is up: greet")
    address = dev.until(r"api +(http://127.0.0.1:\d+)/api")[1]
    with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
        assert answer.status == 200
    link = dev.until(r"log in once: (http\S+)")[1]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(link, timeout=30) as page:
        assert b"<h1" in page.read()
    children = children_of(dev.process.pid)
    assert len(children) == 3

    dev.until("✕ broken .* ValueError: a sample that cannot succeed")
    dev.until("✓ stumble .* attempt 3")
    before = len(dev.text)
    dev.press("l")
    dev.until("worker's log: on", after=before)
    dev.press("s")
    dev.until("12 jobs submitted", after=before)
    dev.until("  samples: .* task.finished", after=before)
    dev.press("l")
    dev.until("worker's log: off", after=before)
    dev.press("o")
    dev.until(r"open http://127.0.0.1:\d+/dashboard/in\?t=", after=before)
    dev.until("● slow", after=before)
    before = len(dev.text)
    dev.press("k")
    dev.until(r"killed with -9: worker, samples, while \d+ jobs? ran", after=before)
    dev.until("recovered: slow .* runs again", after=before, within=90)
    assert children_of(dev.process.pid) & children != children
    children |= children_of(dev.process.pid)

    (tmp_path / "app.py").write_text(APP + "\nthis is no python\n")
    dev.until("app.py changed: restarting the worker")
    dev.until("the worker ended: .*SyntaxError")
    before = len(dev.text)
    (tmp_path / "app.py").write_text(APP)
    dev.until("app.py changed: restarting the worker", after=before)
    dev.until("worker is up: greet", after=before)
    children |= children_of(dev.process.pid)
    dev.press("q")
    assert dev.end() == 0
    assert "nothing is left running" in dev.text
    assert "Traceback" not in dev.text
    assert all(gone(child) for child in children)


@pytest.mark.timeout(200)
async def test_killed_with_9_it_leaves_nothing_running(dev: Terminal) -> None:
    dev.until("worker is up: greet", within=90)
    children = children_of(dev.process.pid)
    dev.process.kill()
    dev.process.wait()
    await eventually(lambda: all(gone(child) for child in children), within=timedelta(seconds=60))


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("postgresql://u:p@127.0.0.1:5432/x", True),
        ("postgresql://localhost/x", True),
        ("postgresql:///x?host=/run/postgresql", True),
        ("postgresql://u@db.example:5432/x", False),
        ("postgresql:///x?host=db.example", False),
        ("postgresql://127.0.0.1.example/x", False),
    ],
)
def test_which_databases_are_near(url: str, near: bool) -> None:
    assert is_near(url) is near


def test_a_database_of_others_is_not_touched_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--database-url", "postgresql://u:secret@db.example/x", "dev"]) == 5
    told = capsys.readouterr().err
    assert "not on this machine" in told
    assert "secret" not in told


async def test_without_anything_to_run(url: Secret, tmp_path: Path) -> None:
    environ = {"HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(tmp_path)}
    terminal = Terminal("dev", "--no-samples", environ=environ, folder=tmp_path)
    assert terminal.end() == 2
    assert "There is nothing to run" in terminal.text
    terminal.close()
