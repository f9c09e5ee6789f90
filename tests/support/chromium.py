"""Debian's Chromium, for tests that look at pages. In CI it is fetched; elsewhere it is used where found."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

FIND = Path(__file__).parents[2] / "scripts" / "chromium.sh"
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]  # as root there is no sandbox


@cache
def program() -> str:
    options = [] if os.environ.get("CI") else ["--find"]
    found = subprocess.run([FIND, *options], capture_output=True, text=True, check=False)
    if found.returncode and options:
        pytest.skip("no Chromium here; scripts/chromium.sh fetches it")
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()
