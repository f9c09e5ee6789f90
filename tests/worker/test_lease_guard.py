"""The lease guard with real processes: what it ends, what it leaves alone, and its replacement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from process_tree import is_running

from holdfast.testing import wait_until
from holdfast.worker.attempts import Attempt
from holdfast.worker.heartbeat_protocol import encode_lease_key
from holdfast.worker.lease_guard import ChildDeadline, LeaseGuard
from holdfast.worker.lease_guard_process import RENEWAL_STRUCT, RENEWALS_OFFSET
from holdfast.worker.renewal_table import RenewalTable

SOON = timedelta(seconds=40)
# Starts another process, prints its id, and then holds the GIL for ever.
GREEDY = (
    "import ctypes, subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True);"
    " ctypes.PyDLL(None).sleep(600)"
)


@dataclass
class GreedyChild:
    process: subprocess.Popen[str]
    grandchild_pid: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_gone(self) -> bool:
        self.process.poll()
        return not is_running(self.pid) and not is_running(self.grandchild_pid)


StartChild = Callable[[], GreedyChild]


@pytest.fixture
def start_child() -> Generator[StartChild]:
    started: list[GreedyChild] = []

    def start() -> GreedyChild:
        process = subprocess.Popen(
            [sys.executable, "-c", GREEDY], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        child = GreedyChild(process, int(process.stdout.readline()))
        started.append(child)
        return child

    yield start
    for child in started:
        for pid in (child.pid, child.grandchild_pid):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        child.process.communicate()


@pytest.fixture
def guard() -> Generator[LeaseGuard]:
    guard = LeaseGuard()
    yield guard
    guard.close()


def make_attempt(*, lease_s: float, renewed_at: float | None = None) -> Attempt:
    fields: dict[str, Any] = {"renewed_at": renewed_at or time.monotonic(), "on_renewed": None}
    claimed = SimpleNamespace(id=uuid4(), attempt=1, nonce=7, lease_s=lease_s)
    return cast("Attempt", SimpleNamespace(claimed=claimed, **fields))


def watch(guard: LeaseGuard, child: GreedyChild) -> ChildDeadline:
    return guard.watch_child(child.pid)


async def test_child_past_its_deadline_is_ended_with_the_processes_it_started(
    guard: LeaseGuard, start_child: StartChild
) -> None:
    child, neighbour = start_child(), start_child()
    deadline, other = watch(guard, child), watch(guard, neighbour)
    other.begin_attempt(make_attempt(lease_s=3600))
    deadline.begin_attempt(make_attempt(lease_s=2, renewed_at=time.monotonic() - 10))
    await wait_until(child.is_gone, within=SOON)
    assert deadline.has_expired
    assert not other.has_expired
    assert is_running(neighbour.pid)


async def test_renewal_moves_the_deadline(guard: LeaseGuard, start_child: StartChild) -> None:
    """The guard wakes at the first deadline and finds that it has moved."""
    child, marker = start_child(), start_child()
    deadline, marked = watch(guard, child), watch(guard, marker)
    attempt = make_attempt(lease_s=1)
    deadline.begin_attempt(attempt)
    attempt.renewed_at += 3600
    assert attempt.on_renewed is not None
    attempt.on_renewed(attempt)
    marked.begin_attempt(make_attempt(lease_s=2))  # ends later than the first deadline
    await wait_until(marker.is_gone, within=SOON)
    assert is_running(child.pid)


async def test_renewal_that_the_worker_did_not_see_counts(
    guard: LeaseGuard, start_child: StartChild, tmp_path: Path
) -> None:
    """The heartbeat process records it in its own memory."""
    memory = tmp_path / "memory"
    memory.write_bytes(bytes(8192))
    with memory.open("r+b") as file:
        guard.renewals_descriptor = file.fileno()
        child, marker = start_child(), start_child()
        deadline, marked = watch(guard, child), watch(guard, marker)
        attempt, late = (make_attempt(lease_s=2, renewed_at=time.monotonic() - 10) for _ in range(2))
        table = RenewalTable(file.fileno())
        table.record_renewals([encode_lease_key(late.claimed)], time.monotonic() - 5)
        for renewed_at in (time.monotonic() - 1, time.monotonic() + 3600):
            table.record_renewals([encode_lease_key(attempt.claimed)], renewed_at)
        deadline.begin_attempt(attempt)
        marked.begin_attempt(late)
        await wait_until(marker.is_gone, within=SOON)
        assert is_running(child.pid)


async def test_renewal_table_overwrites_its_oldest_entries(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.write_bytes(bytes(RENEWALS_OFFSET + 2 * RENEWAL_STRUCT.size))
    keys = [bytes([number]) * 28 for number in range(3)]
    with memory.open("r+b") as file:
        table = RenewalTable(file.fileno())
        for number, key in enumerate(keys):
            table.record_renewals([key], float(number))
        table.record_renewals([keys[1]], 7.0)
    entries = RENEWAL_STRUCT.iter_unpack(memory.read_bytes()[RENEWALS_OFFSET:])
    assert list(entries) == [(keys[2], 2.0), (keys[1], 7.0)]


async def test_child_without_a_task_has_no_deadline(guard: LeaseGuard, start_child: StartChild) -> None:
    child, marker = start_child(), start_child()
    deadline, marked = watch(guard, child), watch(guard, marker)
    attempt = make_attempt(lease_s=1)
    deadline.begin_attempt(attempt)
    deadline.end_attempt()
    deadline.extend(attempt)  # a renewal that arrives late
    marked.begin_attempt(make_attempt(lease_s=2))
    await wait_until(marker.is_gone, within=SOON)
    assert is_running(child.pid)


async def test_rest_of_a_process_group_is_ended_with_its_child(
    guard: LeaseGuard, start_child: StartChild
) -> None:
    child = start_child()
    watch(guard, child)
    child.process.kill()
    await wait_until(child.is_gone, within=SOON)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_guard_process_that_is_gone_or_does_not_read_is_replaced(
    guard: LeaseGuard, start_child: StartChild, how: signal.Signals
) -> None:
    child = start_child()
    deadline = watch(guard, child)
    first = guard.process_pid
    assert first is not None
    os.kill(first, how)
    attempt = make_attempt(lease_s=3600)

    def is_replaced() -> bool:
        """Each attempt sends a command. A process that does not read them lets the socket fill."""
        for _ in range(50):
            deadline.begin_attempt(attempt)
        return guard.process_pid != first

    await wait_until(is_replaced, within=SOON)
    deadline.begin_attempt(make_attempt(lease_s=2, renewed_at=time.monotonic() - 10))
    await wait_until(child.is_gone, within=SOON)
    assert deadline.has_expired


async def test_children_of_a_killed_worker_are_ended_with_their_groups(start_child: StartChild) -> None:
    child = start_child()
    code = (
        "import sys, time; from holdfast.worker.lease_guard import LeaseGuard; guard = LeaseGuard();"
        "guard.watch_child(int(sys.argv[1])); print('watching', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(child.pid)], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.kill()
        await wait_until(child.is_gone, within=SOON)
