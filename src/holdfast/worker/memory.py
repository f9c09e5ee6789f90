"""Measure the memory of a process and its descendants."""

from __future__ import annotations

import re
from pathlib import Path

_NON_FILE_MEMORY_PATTERN = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def measure_non_file_memory(pid: int) -> int:
    """Return the anonymous and shared memory of a process tree in bytes, without mapped files.

    Returns 0 on systems without /proc.
    """
    total = 0
    pids = [pid]
    while pids:
        current = pids.pop()
        folder = Path(f"/proc/{current}")
        try:
            total += sum(
                int(size) for size in _NON_FILE_MEMORY_PATTERN.findall((folder / "status").read_bytes())
            )
            for thread in (folder / "task").iterdir():
                pids += [int(child) for child in (thread / "children").read_bytes().split()]
        except (OSError, ValueError):  # the process ended in the meantime
            continue
    return total * 1024
