"""Find Debian's Chromium for browser tests. In CI it is installed; elsewhere, tests skip without it."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

FIND_CHROMIUM_SCRIPT = Path(__file__).parents[2] / "scripts" / "chromium.sh"
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]  # the sandbox does not work as root


@cache
def find_chromium() -> str:
    arguments = [] if os.environ.get("CI") else ["--find"]
    result = subprocess.run([FIND_CHROMIUM_SCRIPT, *arguments], capture_output=True, text=True, check=False)
    if result.returncode and arguments:
        pytest.skip("Chromium is not installed; run scripts/chromium.sh")
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
