"""`make demo` as a user sees it: real processes, real database, exit code, what is left afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.devtools import sample_tasks as samples
from holdfast.settings import Secret
from holdfast.systems.providers.mp3 import measure
from holdfast.testing import eventually


def start(url: Secret, home: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "--home", str(home), "demo", *options],
        env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_API_PORT": "0"},
        cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.timeout(300)
async def test_the_demo_runs_its_jobs_and_leaves_nothing_running(url: Secret, tmp_path: Path) -> None:
    process = start(url, tmp_path)
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0, out
    assert len(re.findall(r"succeeded", out)) >= 3
    assert "17984" in out
    assert "arrived on attempt 3" in out
    assert "succeeded  4459" in out
    assert "30 read, 1 unreadable one in the dead letters" in out
    assert (tmp_path / "demo" / "julia.png").read_bytes().startswith(b"\x89PNG")
    for name in ("amara.pdf", "jonas.pdf", "lucia.pdf", "report.pdf"):
        assert (tmp_path / "demo" / name).read_bytes().startswith(b"%PDF")
    sound = measure((tmp_path / "demo" / "report-chapter1.mp3").read_bytes())
    assert sound is not None
    assert sound.bit_rate == 128
    assert sound.seconds > 20
    assert url.reveal() not in out


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_failed_job_makes_the_exit_code_1(url: Secret, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "julia.png").mkdir()  # the drawing cannot be written, however often it is tried
    environ = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_API_PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c",
         "from datetime import timedelta; import dataclasses\n"
         "from holdfast.devtools import samples; from holdfast.definitions.tasks import RetryPolicy\n"
         "import holdfast.cli\n"
         "samples.draw = dataclasses.replace(samples.draw, retry=RetryPolicy(retries=0))\n"
         f"holdfast.cli.main(['--home', {str(tmp_path)!r}, 'demo'])"],
        env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 1, out
    assert "IsADirectoryError" in out or "Is a directory" in out


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_stay_keeps_it_up_until_told_to_stop(url: Secret, tmp_path: Path) -> None:
    process = start(url, tmp_path, "--stay")
    assert process.stdout
    seen = ""
    while "Up until Ctrl-C" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    children = children_of(process.pid)
    assert len(children) == 3

    def restarted() -> bool:
        (tmp_path / "app.py").write_text("x = 1")  # again and again: it may not be watching yet
        now = children_of(process.pid)
        return len(now) == 3 and not set(now) & set(children)

    await eventually(restarted, within=timedelta(seconds=60))
    children += children_of(process.pid)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "restarting the worker: app.py changed" in rest
    assert "nothing is left running" in rest
    assert all(gone(child) for child in children)


async def test_killed_with_9_it_leaves_nothing_running_either(url: Secret, tmp_path: Path) -> None:
    process = start(url, tmp_path, "--stay")
    await eventually(lambda: len(children_of(process.pid)) == 3, within=timedelta(seconds=30))
    children = children_of(process.pid)
    process.kill()
    process.communicate(timeout=30)
    await eventually(lambda: all(gone(child) for child in children), within=timedelta(seconds=40))


async def test_a_worker_that_dies_is_told_at_once(url: Secret, tmp_path: Path) -> None:
    process = start(url, tmp_path)

    def worker() -> int | None:
        for child in children_of(process.pid):
            if "worker" in Path(f"/proc/{child}/cmdline").read_text().split("\0"):
                return child
        return None

    os.kill(await eventually(worker, within=timedelta(seconds=30)), signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert "The worker ended by itself (-9)" in out
    assert "Traceback" not in out


async def test_what_the_machine_refuses_is_a_sentence(url: Secret, tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file where a folder should be")
    out, _ = (process := start(url, tmp_path)).communicate(timeout=60)
    assert process.returncode == 1
    assert "error: " in out
    assert "Traceback" not in out


@pytest.mark.parametrize(("below", "primes"), [(0, 0), (2, 0), (3, 1), (100, 25), (1000, 168)])
def test_the_samples_are_right(below: int, primes: int) -> None:
    assert sum(samples._is_prime(n) for n in range(below)) == primes
