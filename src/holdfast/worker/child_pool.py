"""A pool of child processes for tasks with `process=True` and for suspects. Each runs one task at a time.

Children are started anew, not forked, because threads and connections would leak into a fork. A child imports
the application and runs task after task until it has run enough of them or has been idle for long. A worker
that serves tasks with `process=True` keeps spare children ready, because starting one takes far longer than
claiming a task. The worker watches the memory of a child as the anonymous pages that the child and its
descendants hold. Limits of the operating system count address space instead, which numeric and browser code
reserves by gigabytes and never touches, and exceeding them causes errors far from their origin. Which deaths
of a child are charged to its task is decided in child_death.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, Protocol

from holdfast.engine.connection import Database
from holdfast.worker.attempts import RELEASING_STOP_REASONS, Attempt
from holdfast.worker.child_death import CRASH_CHARGE_DELAY_S, ChildDiedError
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.lease_guard import LeaseGuard
from holdfast.worker.outcomes import TaskOutcome, build_stop_outcome

MAX_TASKS_PER_CHILD: Final = 100
MAX_CHILD_IDLE_S: Final = 60.0
MAX_SPARE_CHILDREN: Final = 4
SPARE_CHECK_INTERVAL_S: Final = 0.5
MAX_SPARE_RETRY_S: Final = 60.0


class ChildObserver(Protocol):
    """Learns which child processes run: the heartbeat, which returns leases only after they have ended.

    Children inherit the socket, which tells the same to the heartbeat process. The lease guard reads renewals
    from the shared memory.
    """

    @property
    def socket_descriptor(self) -> int | None: ...
    @property
    def memory_descriptor(self) -> int: ...
    def add_child(self, pid: int) -> None: ...
    def remove_child(self, pid: int) -> None: ...


class ChildProcessPool:
    """Starts, reuses and ends child processes.

    `modules` are imported by children that are not started for an application file.
    """

    def __init__(
        self,
        command: Sequence[str],
        database: Database,
        task_types: Collection[str],
        max_tasks_per_child: int = MAX_TASKS_PER_CHILD,
        modules: Sequence[str] = (),
    ) -> None:
        self.task_types = task_types
        self.heartbeat: ChildObserver | None = None
        self._command = list(command)
        self._modules = list(modules)
        self._database = database
        self._max_tasks_per_child = max_tasks_per_child
        self._guard = LeaseGuard()
        # Starting a child costs most of the CPU time, so only as many start at once as there are cores.
        self._max_parallel_starts = max(1, os.cpu_count() or 1)
        self._starting_count = 0
        self._waiting: dict[asyncio.Future[ChildProcess | None], None] = {}
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._idle_timers: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._count_free_slots: Callable[[], int] | None = None
        self._spare_timer: asyncio.TimerHandle | None = None
        self._spare_failures = 0
        self._spares_allowed_at = 0.0

    async def run_attempt(self, attempt: Attempt) -> TaskOutcome | None:
        """Run one attempt in a child process. Return None if there is no outcome to record."""
        try:
            child = await self._acquire_child(attempt)
        except ChildDiedError as death:
            return death.to_outcome(attempt)
        if child is None or attempt.stop_reason is not None:
            if child is not None:
                self._release_child(child)
            return build_stop_outcome(attempt, detail=", most of it waiting for its child process to start")
        try:
            outcome = await child.run_attempt(attempt)
        except ChildDiedError as death:
            return await self._judge_death(attempt, death)
        except BaseException:
            self._discard_child(child)
            raise
        self._release_child(child)
        return outcome

    async def _judge_death(self, attempt: Attempt, death: ChildDiedError) -> TaskOutcome | None:
        """Decide the outcome of an attempt whose child process died."""
        outcome = death.to_outcome(attempt)
        if attempt.stop_reason is None and death.is_unexplained:
            stop_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            attempt.on_stop = stop_reason.set_result  # called once: an attempt is stopped once
            await asyncio.wait([stop_reason], timeout=CRASH_CHARGE_DELAY_S)
            if stop_reason.done() and stop_reason.result() in RELEASING_STOP_REASONS:
                return build_stop_outcome(attempt)  # the worker is about to go as well
        return outcome

    async def close(self) -> None:
        self._count_free_slots = None
        for timer in (*self._idle_timers.values(), self._spare_timer):
            if timer is not None:
                timer.cancel()
        for task in self._background:
            task.cancel()
        children, self._all, self._idle = self._all, set[ChildProcess](), []
        await asyncio.gather(*(child.end_process() for child in children), return_exceptions=True)
        await asyncio.to_thread(self._guard.close)

    # Spare children

    def keep_spares(self, count_free_slots: Callable[[], int]) -> None:
        """Keep children ready from now on: as many as there are free slots, up to MAX_SPARE_CHILDREN.

        The first ones start a moment later, after the worker has sent its first claim.
        """
        self._count_free_slots = count_free_slots
        self._check_spares_later()

    def _check_spares_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._spare_timer = loop.call_later(SPARE_CHECK_INTERVAL_S, self._check_spares)

    def _check_spares(self) -> None:
        # Also from time to time, because attempts outside of children free slots too.
        self._start_missing_children()
        self._check_spares_later()

    def _count_missing_spares(self) -> int:
        if self._count_free_slots is None or time.monotonic() < self._spares_allowed_at:
            return 0
        return max(0, min(MAX_SPARE_CHILDREN, self._count_free_slots()) - len(self._idle))

    def _record_spare_failure(self) -> None:
        """Start the next spare after a pause, which grows while spares keep dying."""
        pause_s = min(2.0**self._spare_failures, MAX_SPARE_RETRY_S)
        self._spare_failures += 1
        self._spares_allowed_at = time.monotonic() + pause_s

    # From the start of a child to its end

    async def _acquire_child(self, attempt: Attempt) -> ChildProcess | None:
        """Take an idle child, or wait until one is started or becomes idle. None: the attempt was stopped."""
        child = self._take_idle_child()
        if child is not None:
            self._start_missing_children()
            return child
        waiter: asyncio.Future[ChildProcess | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None

        def stop_waiting(_: str) -> None:
            if not waiter.done():
                waiter.set_result(None)

        attempt.on_stop = stop_waiting
        self._start_missing_children()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release_child(waiter.result())
            raise
        finally:
            self._waiting.pop(waiter, None)

    def _take_idle_child(self) -> ChildProcess | None:
        while self._idle:
            child = self._idle.pop()
            self._cancel_idle_timer(child)
            if child.is_alive:
                return child
        return None

    def _start_missing_children(self) -> None:
        """Start children for the waiting attempts first, then spares."""
        needed = len(self._waiting) + self._count_missing_spares()
        while self._starting_count < min(needed, self._max_parallel_starts):
            self._starting_count += 1
            self._run_in_background(self._start_child())

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _start_child(self) -> None:
        try:
            child = await self._create_started_child()
        except Exception as error:  # an attempt that waits for this child must not wait forever
            self._hand_over_failure(error)
        else:
            self._spare_failures = 0
            self._hand_over_child(child, is_new=True)
        finally:
            self._starting_count -= 1
        self._start_missing_children()

    async def _create_started_child(self) -> ChildProcess:
        if self.heartbeat is not None:
            self._guard.renewals_descriptor = self.heartbeat.memory_descriptor
        child = ChildProcess(
            self._command,
            self._database,
            None if self.heartbeat is None else self.heartbeat.socket_descriptor,
            self._guard,
            modules=self._modules,
            on_started=self._handle_child_start,
            on_ended=self._handle_child_end,
        )
        self._all.add(child)
        try:
            await child.start()
        except BaseException:
            self._discard_child(child)
            raise
        return child

    def _take_waiter(self) -> asyncio.Future[ChildProcess | None] | None:
        while self._waiting:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            if not waiter.done():
                return waiter
        return None

    def _hand_over_failure(self, error: Exception) -> None:
        waiter = self._take_waiter()
        if waiter is None:
            self._record_spare_failure()
        else:
            waiter.set_exception(error)

    def _hand_over_child(self, child: ChildProcess, *, is_new: bool) -> None:
        """Give a child to the attempt that waits longest, or keep it idle."""
        waiter = self._take_waiter()
        if waiter is not None:
            waiter.set_result(child)
            return
        # The last one is taken first: a child that has run tasks has imported more and is faster.
        self._idle.insert(0 if is_new else len(self._idle), child)
        loop = asyncio.get_running_loop()
        self._idle_timers[child] = loop.call_later(MAX_CHILD_IDLE_S, self._end_idle_child, child)

    def _release_child(self, child: ChildProcess | None) -> None:
        if child is None:
            return
        if not child.is_alive or child.task_count >= self._max_tasks_per_child:
            self._run_in_background(child.end_process())
        else:
            self._hand_over_child(child, is_new=False)
        self._start_missing_children()

    def _end_idle_child(self, child: ChildProcess) -> None:
        self._idle_timers.pop(child, None)
        is_spare = self._count_free_slots is not None and len(self._idle) <= MAX_SPARE_CHILDREN
        if child in self._idle and not is_spare:
            self._idle.remove(child)
            self._run_in_background(child.end_process())

    def _discard_child(self, child: ChildProcess) -> None:
        self._all.discard(child)
        child.kill()

    def _cancel_idle_timer(self, child: ChildProcess) -> None:
        timer = self._idle_timers.pop(child, None)
        if timer is not None:
            timer.cancel()

    def _handle_child_start(self, pid: int) -> None:
        if self.heartbeat is not None:
            self.heartbeat.add_child(pid)

    def _handle_child_end(self, child: ChildProcess) -> None:
        self._all.discard(child)
        if self.heartbeat is not None:
            self.heartbeat.remove_child(child.pid)
        if child in self._idle:
            self._idle.remove(child)
            self._cancel_idle_timer(child)
            self._record_spare_failure()
