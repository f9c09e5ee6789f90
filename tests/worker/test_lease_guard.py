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
from types import SimpleNamespace
from typing import Any, cast

import pytest
from process_tree import is_running

from holdfast.testing import wait_until
from holdfast.worker.attempts import Attempt
from holdfast.worker.lease_guard import ChildDeadline, LeaseGuard

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
    return cast("Attempt", SimpleNamespace(claimed=SimpleNamespace(lease_s=lease_s), **fields))


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
