"""Measure the memory of a worker and of all processes that it started."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC_DIR = Path("/proc")


def _read_parent_pids() -> dict[int, int]:
    parents = {}
    for path in PROC_DIR.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            # The program name may contain any character, so read the fields after the last parenthesis.
            parents[int(path.parent.name)] = int(
                path.read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            )
    return parents


def find_process_tree(pid: int, parents: dict[int, int]) -> set[int]:
    """Return the pids of a process and of all its descendants."""
    known, children = {pid}, {pid}
    while children:
        children = {child for child, parent in parents.items() if parent in children} - known
        known |= children
    return known


def parse_resident_bytes(rollup: str) -> int:
    """Return the resident memory of one process in bytes, from the text of its `smaps_rollup`.

    Memory that forked processes share is divided among them. Mapped files count in full. Otherwise the result
    would depend on other processes that run the same program.
    """
    sizes = {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return (sizes["Rss:"] - sizes["Anonymous:"] + sizes["Pss_Anon:"]) * 1024


def read_process_tree_mb(pid: int) -> float:
    total = 0
    for member in find_process_tree(pid, _read_parent_pids()):
        with contextlib.suppress(OSError):  # the process has ended
            total += parse_resident_bytes((PROC_DIR / str(member) / "smaps_rollup").read_text())
    return total / 1e6
