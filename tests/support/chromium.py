"""Find Debian's Chromium for browser tests. In CI it is installed; elsewhere, tests skip without it."""

from __future__ import annotations

from outside_programs import find_program

CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]  # the sandbox does not work as root


def find_chromium() -> str:
    return find_program("chromium")
