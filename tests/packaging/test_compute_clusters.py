"""The example for Dask runs on a real cluster: results, errors, and remote code that stops."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from wheel_environments import ROOT, UV_PROGRAM

from holdfast import Client, task
from holdfast.errors import TaskFailedError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

EXAMPLE = ROOT / "examples" / "dask_cluster.py"
PRIMES_BELOW_20000 = 2262
ENDLESS = 10**9
# Records that the remote function runs, and fails on request. Added to a copy of the example.
INSTRUMENTATION = """
_count_primes_between = count_primes_between


def count_primes_between(start, size):
    import pathlib, time

    if size == 3:
        raise LookupError("no such part")
    if size < 10**6:
        return _count_primes_between(start, size)
    beats = pathlib.Path("{beats}")
    while True:
        with beats.open("a") as file:
            file.write(".")
        time.sleep(0.05)
        stop_if_cancelled()
"""


@task(name="count_primes", queue="compute")
async def count_primes(limit: int) -> int:
    raise NotImplementedError  # the worker runs the example


@pytest.fixture(scope="module")
def cluster_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with Dask, and with the packages of this environment behind them."""
    environment = tmp_path_factory.mktemp("compute") / "venv"
    subprocess.run([UV_PROGRAM, "venv", "-q", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    requirements = ROOT / "requirements" / "compute.txt"
    subprocess.run([UV_PROGRAM, "pip", "install", "-q", "--python", python, "-r", requirements], check=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    (packages / "holdfast-tests.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    return python


@asynccontextmanager
async def run_worker(python: Path, url: Secret, folder: Path) -> AsyncGenerator[Path]:
    """Run an instrumented copy of the example. Yield the file that grows while remote code runs."""
    beats = folder / "beats"
    beats.touch()
    body, separator, main = EXAMPLE.read_text().partition("async def main()")
    application = folder / EXAMPLE.name
    application.write_text(body + INSTRUMENTATION.format(beats=beats) + separator + main)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "holdfast", "worker", application, "--grace", "5s"],
            env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()},
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield beats
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, 40)


async def wait_until_silent(beats: Path) -> None:
    """Wait until the remote code has not written anything for a second."""
    sizes = [beats.stat().st_size]

    async def is_silent() -> bool:
        await asyncio.sleep(1)
        sizes.append(beats.stat().st_size)
        return sizes[-1] == sizes[-2]

    await wait_until(is_silent, within=timedelta(seconds=60), what="the remote code to stop")


@pytest.mark.timeout(400)
async def test_example_computes_fails_and_stops(
    cluster_python: Path, url: Secret, settings: Settings, tmp_path: Path
) -> None:
    async with (
        Client(url.reveal(), settings=settings) as client,
        run_worker(cluster_python, url, tmp_path) as beats,
    ):
        job = await client.submit(count_primes(20_000))
        assert await job.result(within=180) == PRIMES_BELOW_20000
        assert (await job.get()).progress is not None
        failing = await client.submit(count_primes(30))
        with pytest.raises(TaskFailedError, match="LookupError: no such part"):
            await failing.result(within=120)
        endless = await client.submit(count_primes(ENDLESS))
        await wait_until(lambda: beats.stat().st_size > 10, within=timedelta(seconds=60), what="remote code")
        await client.cancel(endless.id)
        await wait_until_silent(beats)
        before = beats.stat().st_size
        lost = await client.submit(count_primes(ENDLESS))
        await wait_until(
            lambda: beats.stat().st_size > before + 10, within=timedelta(seconds=60), what="remote code"
        )
    # The worker was killed, so its lease is lost. The cluster stops the parts.
    await wait_until_silent(beats)
    assert not (await Client(url.reveal(), settings=settings).get(lost.id)).ended
