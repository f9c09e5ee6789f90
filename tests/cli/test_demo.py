"""`holdfast demo` with real processes and a real database: output, exit code and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from holdfast.devtools import sample_tasks
from holdfast.settings import Secret
from holdfast.systems.providers.mp3 import measure_mp3
from holdfast.testing import wait_until


def start_demo(url: Secret, home: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "--home", str(home), "demo", *options],
        env={**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_API_PORT": "0"},
        cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def list_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.timeout(300)
async def test_demo_runs_its_jobs_and_stops_all_processes(url: Secret, tmp_path: Path) -> None:
    process = start_demo(url, tmp_path)
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0, out
    assert len(re.findall(r"succeeded", out)) >= 3
    assert "17984" in out
    assert "succeeded on attempt 3" in out
    assert "succeeded  4459" in out
    assert "30 read, 1 invalid one in the dead letters" in out
    assert (tmp_path / "demo" / "julia.png").read_bytes().startswith(b"\x89PNG")
    for name in ("amara.pdf", "jonas.pdf", "lucia.pdf", "report.pdf"):
        assert (tmp_path / "demo" / name).read_bytes().startswith(b"%PDF")
    sound = measure_mp3((tmp_path / "demo" / "report-chapter1.mp3").read_bytes())
    assert sound is not None
    assert sound.bit_rate == 128
    assert sound.duration_s > 20
    if "bookmarks are left out" not in out:  # a machine without Chromium
        assert "3 of 3 complete" in out
        assert (tmp_path / "demo" / "harbour-screenshot.webp").read_bytes()[8:12] == b"WEBP"
        assert (tmp_path / "demo" / "ropes-favicon.png").read_bytes().startswith(b"\x89PNG")
    assert "media are left out" not in out
    assert "s of film, with poster and transcript" in out
    assert (tmp_path / "demo" / "harbour-film-poster.jpg").read_bytes().startswith(b"\xff\xd8")
    assert "-->" in (tmp_path / "demo" / "harbour-film-transcript.srt").read_text()
    assert "What holds a ship: " in out
    assert "search 'how strong is a knot': at " in out
    assert url.reveal() not in out


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_failed_job_is_exit_code_1(url: Secret, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "julia.png").mkdir()  # the task cannot write its file
    environ = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal(), "HOLDFAST_API_PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c",
         "from datetime import timedelta; import dataclasses\n"
         "from holdfast.devtools import sample_tasks; from holdfast.definitions.tasks import RetryPolicy\n"
         "import holdfast.cli\n"
         "no_retry = dataclasses.replace(sample_tasks.draw_julia_set, retry=RetryPolicy(retries=0))\n"
         "sample_tasks.draw_julia_set = no_retry\n"
         f"holdfast.cli.main(['--home', {str(tmp_path)!r}, 'demo'])"],
        env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 1, out
    assert "IsADirectoryError" in out or "Is a directory" in out


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_keep_running_restarts_on_change_until_interrupted(url: Secret, tmp_path: Path) -> None:
    process = start_demo(url, tmp_path, "--keep-running")
    assert process.stdout
    seen = ""
    while "Running until Ctrl-C" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    children = list_children(process.pid)
    check_addresses(seen)

    def restarted() -> bool:
        (tmp_path / "app.py").write_text("x = 1")  # again and again: it may not be watching yet
        now = list_children(process.pid)
        return len(now) == len(children) and not set(now) & set(children)

    await wait_until(restarted, within=timedelta(seconds=60))
    children += list_children(process.pid)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "restarting the worker: app.py changed" in rest
    assert "Stopped all processes" in rest
    assert all(has_ended(child) for child in children)


def check_addresses(output: str) -> None:
    """Open the front door and the dashboard at the printed addresses, and use the printed login."""
    front_door = re.search(r"front door +(http://[^#]+)#token=(\S+)", output)
    dashboard = re.search(r"dashboard +(http://\S+)", output)
    assert front_door, output
    assert dashboard, output
    headers = {"Authorization": f"Bearer {front_door[2]}"}
    with httpx.Client(base_url=front_door[1], follow_redirects=True, timeout=30) as http:
        tiles = re.findall(r'class="card tile" href="([^"]+)"', http.get("/").text)
        assert {"exports", "reports", "my-jobs"} <= set(tiles)
        titles = {job["title"] for job in http.get("/api/v1/my/jobs", headers=headers).json()["jobs"]}
        assert {"Document as PDF", "Report"} <= titles
        page = http.get(dashboard[1])
        assert page.status_code == 200
        assert "Sign in" not in page.text


async def test_sigkill_leaves_no_process_running(url: Secret, tmp_path: Path) -> None:
    process = start_demo(url, tmp_path, "--keep-running")
    await wait_until(lambda: len(list_children(process.pid)) >= 3, within=timedelta(seconds=30))
    children = list_children(process.pid)
    process.kill()
    process.communicate(timeout=30)
    await wait_until(lambda: all(has_ended(child) for child in children), within=timedelta(seconds=40))


async def test_worker_that_dies_ends_the_demo(url: Secret, tmp_path: Path) -> None:
    process = start_demo(url, tmp_path)

    def worker() -> int | None:
        for child in list_children(process.pid):
            if "worker" in Path(f"/proc/{child}/cmdline").read_text().split("\0"):
                return child
        return None

    os.kill(await wait_until(worker, within=timedelta(seconds=30)), signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert "The worker exited unexpectedly with code -9" in out
    assert "Traceback" not in out


async def test_operating_system_error_is_a_sentence(url: Secret, tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file where a folder should be")
    out, _ = (process := start_demo(url, tmp_path)).communicate(timeout=60)
    assert process.returncode == 1
    assert "error: " in out
    assert "Traceback" not in out


@pytest.mark.parametrize(("below", "primes"), [(0, 0), (2, 0), (3, 1), (100, 25), (1000, 168)])
def test_sample_task_counts_primes(below: int, primes: int) -> None:
    assert sum(sample_tasks._is_prime(n) for n in range(below)) == primes
