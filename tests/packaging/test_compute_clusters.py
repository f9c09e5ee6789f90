"""The examples for Dask and Ray run on real clusters: results, errors, and remote code that stops."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from wheel_environments import ROOT, UV_PROGRAM

from holdfast import Client, task
from holdfast.engine.connection import Connection
from holdfast.errors import TaskFailedError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

PRIMES_BELOW_20000 = 2262
SLOW, ENDLESS = 50, 10**9  # parts of 5 numbers, and of 10**8
MAX_CLUSTER_STARTS = 4
MAX_START = timedelta(seconds=400)  # a cluster starts several processes that import much
# What the remote function does in the tests. Added to a copy of the example.
INSTRUMENTATION = """
def _count(count_part, start, size, stop_if_cancelled):
    import pathlib, time

    if size == 3:
        raise LookupError("no such part")
    if size == 5:
        time.sleep(0.5)
    if size < 10**6:
        return count_part(start, size)
    while True:
        with pathlib.Path("{beats}").open("a") as file:
            file.write(".")
        time.sleep(0.05)
        stop_if_cancelled()

"""
INSTRUMENTATIONS = {
    "dask": INSTRUMENTATION
    + """
_count_part = count_primes_between

def count_primes_between(start, size):
    return _count(_count_part, start, size, stop_if_cancelled)

""",
    "ray": INSTRUMENTATION
    + """
_count_part = count_primes_between._function

@ray.remote(max_retries=0)
def count_primes_between(start, size):
    return _count(_count_part, start, size, lambda: None)

""",
}


@task(name="count_primes", queue="compute")
async def count_primes(limit: int) -> int:
    raise NotImplementedError  # the worker runs the example


@pytest.fixture(scope="module")
def cluster_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with Dask and Ray, and with the packages of this environment behind them."""
    environment = tmp_path_factory.mktemp("compute") / "venv"
    subprocess.run([UV_PROGRAM, "venv", "-q", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    requirements = ROOT / "requirements" / "compute.txt"
    installed = subprocess.run(
        [UV_PROGRAM, "pip", "install", "-q", "--python", python, "-r", requirements],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if installed.returncode:
        pytest.skip(f"the packages of {requirements.name} cannot be installed: {installed.stderr[-500:]}")
    packages = next(environment.glob("lib/python*/site-packages"))
    (packages / "holdfast-tests.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    return python


@pytest.fixture
def short_folder() -> Generator[Path]:
    """A folder with a short path: Ray has sockets in it, whose paths have at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class ClusterWorker:
    """A worker that runs an instrumented copy of an example. `beats` grows while remote code runs."""

    process: subprocess.Popen[bytes]
    beats: Path

    def count_beats(self) -> int:
        return self.beats.stat().st_size

    async def wait_for_remote_code(self) -> None:
        before = self.count_beats()
        await wait_until(
            lambda: self.count_beats() > before + 10, within=MAX_START, what="remote code to run"
        )

    async def wait_until_silent(self) -> None:
        """Wait until the remote code has not written anything for a second."""
        sizes = [self.count_beats()]

        async def is_silent() -> bool:
            await asyncio.sleep(1)
            sizes.append(self.count_beats())
            return sizes[-1] == sizes[-2]

        await wait_until(is_silent, within=timedelta(seconds=150), what="the remote code to stop")

    async def wait_for_end(self) -> int:
        return await asyncio.to_thread(self.process.wait, 120)


@asynccontextmanager
async def run_ray_cluster(python: Path, environment: dict[str, str]) -> AsyncGenerator[dict[str, str]]:
    """Start a Ray cluster of one node, and yield the variables with which a driver finds it.

    Ray gives the processes of a node 15 s to start. A busy machine may need several attempts.
    """
    log = Path(environment["RAY_TMPDIR"]) / "cluster-log"
    for _ in range(MAX_CLUSTER_STARTS):
        with log.open("wb") as file:
            process = subprocess.Popen(
                [python.with_name("ray"), "start", "--head", "--block", "--num-cpus=2", "--port=0",
                 "--include-dashboard=false", "--dashboard-agent-listen-port=0"],
                env=environment, stdout=file, stderr=file,
            )  # fmt: skip
        await wait_until(
            lambda process=process: process.poll() is not None or "Ray runtime started" in log.read_text(),  # type: ignore[misc]
            within=MAX_START,
            what="the Ray cluster to start",
        )
        if process.poll() is None:
            break
    else:
        pytest.fail(f"the Ray cluster did not start: {log.read_text()[-2000:]}")
    try:
        yield {"RAY_ADDRESS": "auto"}  # the cluster whose files are in RAY_TMPDIR
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 120)


@asynccontextmanager
async def run_worker(python: Path, kind: str, url: Secret, folder: Path) -> AsyncGenerator[ClusterWorker]:
    beats, log = folder / "beats", folder / "log"
    beats.touch()
    example = ROOT / "examples" / f"{kind}_cluster.py"
    body, separator, main = example.read_text().partition("async def main()")
    application = folder / example.name
    application.write_text(body + INSTRUMENTATIONS[kind].format(beats=beats) + separator + main)
    environment = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": url.reveal(),
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    async with AsyncExitStack() as stack:
        if kind == "ray":
            environment |= await stack.enter_async_context(run_ray_cluster(python, environment))
        with log.open("wb") as file:
            process = subprocess.Popen(
                [python, "-m", "holdfast", "worker", application, "--grace", "60s"],
                env=environment, cwd=folder, stdout=file, stderr=file,
            )  # fmt: skip
        try:
            yield ClusterWorker(process, beats)
        except BaseException:
            sys.stdout.write(log.read_text()[-5000:])  # pytest shows it with the failure
            raise
        finally:
            if process.poll() is None:
                process.kill()
            await asyncio.to_thread(process.wait, 40)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", ["dask", "ray"])
async def test_example_computes_fails_and_stops(
    cluster_python: Path, kind: str, url: Secret, settings: Settings, short_folder: Path, conn: Connection
) -> None:
    async with (
        Client(url.reveal(), settings=settings) as client,
        run_worker(cluster_python, kind, url, short_folder) as worker,
    ):
        job = await client.submit(count_primes(20_000))
        assert await job.result(within=MAX_START.total_seconds()) == PRIMES_BELOW_20000
        slow = await client.submit(count_primes(SLOW))  # its parts end one after the other
        phases = {state.progress.phase async for state in slow.watch(within=MAX_START) if state.progress}
        assert "count" in phases
        failing = await client.submit(count_primes(30))
        with pytest.raises(TaskFailedError, match="LookupError: no such part"):
            await failing.result(within=MAX_START.total_seconds())
        cancelled = await client.submit(count_primes(ENDLESS))
        await worker.wait_for_remote_code()
        await client.cancel(cancelled.id)
        await worker.wait_until_silent()
        taken = await client.submit(count_primes(ENDLESS))
        await worker.wait_for_remote_code()
        # As if the lease had expired and another worker had taken the task.
        lease = "nonce = nonce + 1, lease_until = now() + interval '1 day'"
        await conn.execute(f"update holdfast.tasks set {lease} where id = $1", taken.id)
        await worker.wait_until_silent()
        lost = await client.submit(count_primes(ENDLESS))
        await worker.wait_for_remote_code()
        worker.process.kill()
        await worker.wait_for_end()
        await worker.wait_until_silent()
        assert not (await client.get(lost.id)).ended


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["dask", "ray"])
async def test_worker_finishes_its_task_before_it_ends(
    cluster_python: Path, kind: str, url: Secret, settings: Settings, short_folder: Path
) -> None:
    """Clusters install signal handlers of their own, which must not end the worker."""
    async with (
        Client(url.reveal(), settings=settings) as client,
        run_worker(cluster_python, kind, url, short_folder) as worker,
    ):
        job = await client.submit(count_primes(SLOW))

        async def has_progress() -> bool:
            progress = (await job.get()).progress
            return progress is not None and progress.phase == "count"

        await wait_until(has_progress, within=MAX_START, what="the first part")
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.wait_for_end() == 0
        assert (await job.get()).status == "succeeded"
