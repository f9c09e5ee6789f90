"""A worker with the embedded database, which goes down with its keeper: the worker starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import misbehaving_app as app
import pytest
from embedded_processes import EmbeddedTestHome, kill_processes, temporary_home

from holdfast import Client
from holdfast.engine import embedded
from holdfast.testing import wait_until

SOON = timedelta(seconds=60)


@pytest.fixture
def here() -> Generator[EmbeddedTestHome]:
    with temporary_home(alone=True) as here:
        yield here


def holdfast(here: EmbeddedTestHome, *words: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if "DATABASE_URL" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "--home", str(here.settings.home), *words],
        env={**environment, "RECORD": str(here.folder.parent / "record")},
        stderr=subprocess.DEVNULL,
    )


async def test_worker_restarts_the_embedded_database(here: EmbeddedTestHome) -> None:
    assert holdfast(here, "migrate").wait(60) == 0
    worker = holdfast(here, "worker", app.__file__)
    try:
        with embedded.start_server(here.settings) as server:
            async with Client(server.url.reveal(), settings=here.settings) as client:
                assert await (await client.submit(app.record_in_other_queue(1))).result(within=SOON) == 1
        kill_processes(here.home.supervisor_pid)
        record = Path(here.folder.parent / "record")
        await wait_until(here.home.has_supervisor, within=SOON)  # by the worker: nobody else is left
        server = embedded.find_running_server(here.settings) or embedded.start_server(here.settings)
        with server:
            async with Client(server.url.reveal(), settings=here.settings) as client:
                assert await (await client.submit(app.record_in_other_queue(2))).result(within=SOON) == 2
        assert len({line.split()[0] for line in record.read_text().splitlines()}) == 1
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(40)
