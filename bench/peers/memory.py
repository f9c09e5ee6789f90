"""How much memory a worker takes, with all that it started."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC = Path("/proc")


def _parents() -> dict[int, int]:
    measurements = {}
    for place in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # The name of the program may hold anything, so we read from behind it: state, then parent.
            measurements[int(place.parent.name)] = int(
                place.read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            )
    return measurements


def family(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and all that descend from it."""
    known, more = {pid}, {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - known
        known |= more
    return known


def resident(rollup: str) -> int:
    """In bytes, of what the kernel says of one process.

    Its own memory that it shares with others it was forked from is divided among them; files it maps count in
    full, or it would depend on who else runs the same program.
    """
    sizes = {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return (sizes["Rss:"] - sizes["Anonymous:"] + sizes["Pss_Anon:"]) * 1024


def megabytes(pid: int) -> float:
    total = 0
    for each in family(pid, _parents()):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            total += resident((PROC / str(each) / "smaps_rollup").read_text())
    return total / 1e6
