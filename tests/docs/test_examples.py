"""Tests that every Python block of the docs is part of an example, and that the examples run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Generator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import asyncpg
import pytest

from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError
from holdfast.settings import Secret
from holdfast.testing import wait_until

ROOT = Path(__file__).resolve().parents[2]
# The templates of `holdfast init` are examples too: their tests run them.
EXAMPLE_FOLDERS = (ROOT / "examples", ROOT / "src" / "holdfast" / "devtools" / "templates")
EXAMPLE_SOURCES = [path.read_text() for folder in EXAMPLE_FOLDERS for path in folder.rglob("*.py")]
DOC_PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PYTHON_BLOCKS = [
    (page.relative_to(ROOT), block)
    for page in DOC_PAGES
    # The examples of docs/reference are those of docstrings, which another test runs.
    if not {"decisions", "reference"} & set(page.parts)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(
    ("page", "block"), PYTHON_BLOCKS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(PYTHON_BLOCKS)]
)
def test_every_python_block_is_part_of_an_example(page: Path, block: str) -> None:
    assert any(block.strip() in example for example in EXAMPLE_SOURCES), block


def build_environment(url: Secret) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()}


@pytest.fixture
def start_program(url: Secret) -> Generator[Any]:
    """Start processes that run until the test ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, stdout: Any = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=build_environment(url), cwd=ROOT, stdout=stdout
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.wait(40)


async def test_alerts_are_changed_in_python(url: Secret, conn: Connection) -> None:
    arguments = [sys.executable, "examples/alerts.py"]
    await asyncio.to_thread(subprocess.run, arguments, env=build_environment(url), cwd=ROOT, check=True)
    assert await conn.fetchval("select threshold from holdfast.alert_rules where name = 'mail-slow'") == 30
    assert await conn.fetchval("select count(*) from holdfast.alert_silences where subject = 'mail'") == 1


def test_quickstart_application_runs(url: Secret, start_program: Any) -> None:
    start_program("-m", "holdfast", "worker", "examples/app.py")
    outputs = [
        subprocess.run(
            [sys.executable, "examples/app.py"], env=build_environment(url), cwd=ROOT,
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert "{'be': 2, 'or': 1, 'to': 2, 'not': 1}" in outputs[0]
    assert outputs[0] == outputs[1]


def test_print_shop_example_runs(url: Secret, start_program: Any) -> None:
    start_program("-m", "holdfast", "worker", "examples/print_shop.py")
    lines = subprocess.run(
        [sys.executable, "examples/print_shop.py"], env=build_environment(url), cwd=ROOT,
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout.splitlines()  # fmt: skip
    assert lines[1] == "page 1 | page 2 | queued"
    assert "['Moby Dick: page 1, page 2']" in lines
    assert "100 of 100 ended, 0 failed" in lines
    assert "[('paused', 'out of paper')]" in lines
    assert lines[-2:] == ["failed OSError", "True"]


async def test_messages_example_runs(
    url: Secret, start_program: Any, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conn.execute("select pgmq.create('orders')")
    await conn.execute("select holdfast.put_message_policy('orders', p_backoff => '50 milliseconds')")
    output = tmp_path / "output"
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with output.open("wb") as file:
        start_program("-m", "holdfast", "worker", "examples/messages.py", stdout=file)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "examples/messages.py"], env=build_environment(url), cwd=ROOT,
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "1 1 1\n"
    expected = [
        "shipped order 1",
        "shipped order 2",
        "{'amount': -1, 'number': 3} is a dead letter: ValueError",
    ]
    await wait_until(
        lambda: all(each in output.read_text() for each in expected), within=timedelta(seconds=60)
    )
    payments = await conn.fetch("select * from payments order by number")
    assert [tuple(row) for row in payments] == [(1, 250), (2, 90)]


class PageHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html><title>A page</title></html>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def page() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), PageHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


async def test_bookmarks_example_runs(
    url: Secret, start_program: Any, page: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url.reveal())
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import bookmarks  # noqa: PLC0415

    await conn.execute("create table bookmarks (url text)")
    connection = await asyncpg.connect(url.reveal())
    async with connection.transaction():
        job_id = await bookmarks.add_bookmark(connection, page)
    await connection.close()
    start_program("-m", "holdfast", "worker", "examples/bookmarks.py")
    async with asyncio.timeout(40):
        async for job in bookmarks.client.watch(job_id):
            last = job
    await bookmarks.client.close()
    assert (last.status, last.output) == ("succeeded", "A page")


async def test_erasing_an_account(url: Secret, conn: Connection) -> None:
    await conn.execute("""select holdfast.submit('{"type": "t", "queue": "q", "owner": "ann"}')""")
    await conn.execute("""select holdfast.submit('{"type": "t", "queue": "q", "owner": "bob"}')""")
    result = await asyncio.to_thread(
        subprocess.run, [sys.executable, "examples/erase_account.py", "ann"], env=build_environment(url),
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "'jobs': 1" in result.stdout
    assert await conn.fetchval("select array_agg(owner) from holdfast.tasks") == ["bob"]


async def test_sign_up_example_of_the_readme_runs(
    url: Secret, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url.reveal())
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import sign_up  # noqa: PLC0415

    await conn.execute("create table members (email text primary key)")
    async with sign_up.client:
        await sign_up.sign_up("ann@example.com")
        with pytest.raises(ConflictError):
            await sign_up.sign_up("ann@example.com")
        page = await sign_up.client.search_jobs("type:welcome")
    assert [job.status for job in page.rows] == ["queued"]  # one job: the second transaction was rolled back


NUMBER_PATTERN = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?![\w,])")


@pytest.mark.parametrize(
    ("path", "heading"),
    [("README.md", "## How fast"), ("docs/explain/comparison.md", "## Speed"), ("docs/index.md", "## Why")],
)
def test_rates_are_those_of_the_benchmark_page(path: str, heading: str) -> None:
    section = (ROOT / path).read_text().partition(heading)[2].partition("\n## ")[0]
    rates = set(NUMBER_PATTERN.findall(section)) - {"20,000", "23,000"}  # kills; a rounded rate
    measured = (ROOT / "docs" / "explain" / "benchmarks.md").read_text()
    assert rates or path == "docs/index.md"
    assert not [rate for rate in rates if rate not in measured]
