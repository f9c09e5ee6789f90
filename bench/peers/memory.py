"""How much memory a worker takes, with all that it started."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC = Path("/proc")


def _parents() -> dict[int, int]:
    found = {}
    for place in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # The name of the program may hold anything, so we read from behind it: state, then parent.
            found[int(place.parent.name)] = int(
                place.read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            )
    return found


def family(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and all that descend from it."""
    known, more = {pid}, {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - known
        known |= more
    return known


def _resident(pid: int) -> int:
    """In bytes. What processes share is divided among them; the plain size would count it for each."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def megabytes(pid: int) -> float:
    return sum(_resident(each) for each in family(pid, _parents())) / 1e6
