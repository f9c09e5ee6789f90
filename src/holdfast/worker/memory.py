"""How much memory a process and all that it started really hold."""

from __future__ import annotations

import re
from pathlib import Path

_HELD = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def anonymous_bytes(pid: int) -> int:
    """Pages of their own, without files that are mapped and shared. 0 where the system does not tell."""
    total = 0
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        place = Path(f"/proc/{each}")
        try:
            total += sum(int(size) for size in _HELD.findall((place / "status").read_bytes()))
            for thread in (place / "task").iterdir():
                waiting += [int(child) for child in (thread / "children").read_bytes().split()]
        except (OSError, ValueError):  # it ended while we looked
            continue
    return total * 1024
