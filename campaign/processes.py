"""Look at the processes of this machine, which runs kill and freeze."""

from __future__ import annotations

import contextlib
from pathlib import Path


class UnsupportedMachineError(Exception):
    """The machine lacks something that a run needs, such as free memory."""


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or _is_zombie(pid)


def list_descendants(pid: int) -> list[int]:
    pids = [pid]
    for each in pids:
        with contextlib.suppress(OSError):
            for place in Path(f"/proc/{each}/task").glob("*/children"):
                pids += [int(child) for child in place.read_text().split()]
    return pids[1:]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True
