"""The processes that a worker has started, told apart by their command lines."""

from __future__ import annotations

from pathlib import Path


def list_child_pids(pid: int) -> list[int]:
    pids: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        pids += [int(child) for child in (thread / "children").read_text().split()]
    return pids


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended. A process that nobody has waited for yet has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X", "x"}


def find_heartbeat_pid(worker_pid: int) -> int:
    (pid,) = _list_matching_pids(worker_pid, b"heartbeat_process")
    return pid


def find_lease_guard_pid(worker_pid: int) -> int:
    (pid,) = _list_matching_pids(worker_pid, b"lease_guard_process")
    return pid


def list_task_process_pids(worker_pid: int) -> list[int]:
    """The child processes that run tasks or are ready to run them."""
    return _list_matching_pids(worker_pid, b"holdfast.cli.child")


def _list_matching_pids(worker_pid: int, part: bytes) -> list[int]:
    pids: list[int] = []
    for pid in list_child_pids(worker_pid):
        try:
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if part in command_line and is_running(pid):
            pids.append(pid)
    return pids
