"""Killed workers, launchers and programs leave no process behind, and a killed worker no files either."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from process_tree import is_running
from sample_media import make_mp4

from holdfast.systems.capture.chromium_launcher import NICENESS, find_descendants
from holdfast.systems.media import ffmpeg
from holdfast.systems.sandbox.programs import ProgramKilledError
from holdfast.testing import wait_until

WITHIN = timedelta(seconds=60)
ENDLESS = ("-re", "-stream_loop", "-1")
WORKER = """
import asyncio, sys
from pathlib import Path
from holdfast.systems.media import ffmpeg
path = Path(sys.argv[1])
arguments = ["-map", "0:v", "-c:v", "libx264", "-f", "mpegts", "out.ts"]
before = ["-re", "-stream_loop", "-1"]
asyncio.run(ffmpeg.run_ffmpeg(path, arguments, path.parent, timeout_s=600, before=before))
"""


@pytest.fixture
def film(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt"
    folder.mkdir()
    return make_mp4(folder / "film.mp4", 2)


def find_program(root: int) -> int | None:
    """Return the process id of the running ffmpeg below a process."""
    for pid in find_descendants(root):
        path = Path(f"/proc/{pid}/exe")
        if path.exists() and path.readlink().name.startswith("ffmpeg"):
            return pid
    return None


async def test_a_killed_worker_takes_its_programs_and_their_folder_along(film: Path) -> None:
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, str(film))
    await wait_until(lambda: find_program(worker.pid) and (film.parent / "out.ts").exists(), within=WITHIN)
    pids = find_descendants(worker.pid)
    worker.kill()
    await worker.wait()
    await wait_until(lambda: not [pid for pid in pids if is_running(pid)], within=WITHIN)
    await wait_until(lambda: not film.parent.exists(), within=WITHIN)


@pytest.mark.parametrize("victim", ["program", "launcher"])
async def test_a_killed_program_is_tried_again(film: Path, victim: str) -> None:
    """It is not the fault of the file, so the file is not refused."""
    run = asyncio.create_task(
        ffmpeg.run_ffmpeg(film, ["-f", "null", "-"], film.parent, timeout_s=600, before=ENDLESS)
    )
    program = await wait_until(lambda: find_program(os.getpid()), within=WITHIN)
    launcher = next(pid for pid in find_descendants(os.getpid()) if program in find_descendants(pid))
    os.kill(program if victim == "program" else launcher, signal.SIGKILL)
    with pytest.raises(ProgramKilledError):
        await run
    await wait_until(lambda: not is_running(program) and not is_running(launcher), within=WITHIN)
    assert film.exists()


async def test_a_program_gives_way_to_the_worker(film: Path) -> None:
    """On a busy machine, the heartbeat of the worker and the API come before a conversion."""
    run = asyncio.create_task(
        ffmpeg.run_ffmpeg(film, ["-f", "null", "-"], film.parent, timeout_s=600, before=ENDLESS)
    )
    program = await wait_until(lambda: find_program(os.getpid()), within=WITHIN)
    launcher = next(pid for pid in find_descendants(os.getpid()) if program in find_descendants(pid))
    own, *others = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (os.getpid(), launcher, program))
    group = Path(f"/proc/{program}/autogroup")
    group_niceness = group.read_text().split()[-1] if group.exists() else str(NICENESS)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert others == [min(19, own + NICENESS)] * 2
    assert group_niceness == str(NICENESS), "the kernel may give each session the same share"


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 20])
def test_an_event_loop_that_ends_while_a_program_starts_does_not_hang(film: Path, steps: int) -> None:
    """`asyncio.run` cancels everything when its coroutine returns, at whatever moment that is."""

    async def start_and_return() -> None:
        run = asyncio.create_task(
            ffmpeg.run_ffmpeg(film, ["-f", "null", "-"], film.parent, timeout_s=600, before=ENDLESS)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        assert not run.done()

    asyncio.run(start_and_return())
    assert not find_program(os.getpid())
    assert film.exists()
