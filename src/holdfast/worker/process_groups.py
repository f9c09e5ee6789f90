"""The state of other processes, and the end of process groups, as the operating system reports them.

Each child process of a worker leads a process group: the processes that it starts belong to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

GROUP_CHECK_INTERVAL_S = 0.02


def read_process_state(pid: int) -> str | None:
    """Return the state letter of a process from /proc, or None where the system has no /proc."""
    fields = _read_stat_fields(pid)
    return fields[0] if fields else None


def kill_process_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


async def end_process_groups(leaders: Iterable[int]) -> None:
    """Kill process groups and wait until their processes have ended."""
    alive = set(leaders)
    for leader in alive:
        kill_process_group(leader)
    while alive := {leader for leader in alive if _is_group_alive(leader)}:  # noqa: ASYNC110
        await asyncio.sleep(GROUP_CHECK_INTERVAL_S)


def _is_group_alive(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # Zombies count as members, and in a container nobody may ever reap them.
    fields_by_process = [_read_stat_fields(int(entry.name)) for entry in _list_process_folders()]
    members = [fields for fields in fields_by_process if fields and int(fields[2]) == leader]
    return not fields_by_process or any(fields[0] not in {"Z", "X", "x"} for fields in members)


def _list_process_folders() -> list[Path]:
    try:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _read_stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on: state, parent, process group, and so on."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()
