"""Programs of the operating system that tests need, such as Chromium: found, or installed in CI."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

SCRIPTS_DIR = Path(__file__).resolve().parents[2] / "scripts"


@cache
def find_program(script: str) -> str:
    """Return what `scripts/<script>.sh` prints: the path or the command of a program.

    In CI the script installs the program. Elsewhere nothing is installed, and tests are skipped without it.
    """
    options = [] if os.environ.get("CI") else ["--find"]
    process = subprocess.run(
        [SCRIPTS_DIR / f"{script}.sh", *options], capture_output=True, text=True, check=False
    )
    if process.returncode and options:
        pytest.skip(f"{script} is not here; scripts/{script}.sh installs it")
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()
