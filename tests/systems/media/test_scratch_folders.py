"""The folders of workers that were killed are deleted by the next worker, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.systems.media.worker_state import (
    SCRATCH_PREFIX,
    delete_stale_scratch_folders,
    find_start_time,
)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the process table of Linux")
def test_folders_of_ended_processes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    own, other = find_start_time(os.getpid()), find_start_time(process.pid)
    running = tmp_path / f"{SCRATCH_PREFIX}{process.pid}-{other}-a"
    kept = [
        tmp_path / f"{SCRATCH_PREFIX}{os.getpid()}-{own}-b",
        tmp_path / f"{SCRATCH_PREFIX}doctor-c",
        running,
    ]
    reused = tmp_path / f"{SCRATCH_PREFIX}{os.getpid()}-1-d"  # the number belonged to another process
    for folder in (*kept, reused):
        folder.mkdir()
        (folder / "media").write_bytes(b"x")
    delete_stale_scratch_folders()
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and its parent has not asked for it
    delete_stale_scratch_folders()
    assert sorted(tmp_path.iterdir()) == sorted(kept[:2])
    process.wait()
