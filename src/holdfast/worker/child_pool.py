"""A pool of child processes for tasks with `process=True` and for suspects. Each runs one task at a time.

Children are started anew, not forked, because threads and connections would leak into a fork. A child imports
the application and runs task after task until it has run enough of them or has been idle for long. The worker
watches the memory of a child as the anonymous pages that the child and its descendants hold. Limits of the
operating system count address space instead, which numeric and browser code reserves by gigabytes and never
touches, and exceeding them causes errors far from their origin. A child that dies is a crash of its task
alone; the error contains the signal, the peak of its memory and its last lines of output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final

from holdfast.engine.connection import Database
from holdfast.worker.attempts import Attempt
from holdfast.worker.child_process import ChildDiedError, ChildProcess
from holdfast.worker.outcomes import TaskOutcome, build_stop_outcome

MAX_TASKS_PER_CHILD: Final = 100
MAX_CHILD_IDLE_S: Final = 60.0


class ChildProcessPool:
    """Starts, reuses and ends child processes.

    `heartbeat_fd` returns the descriptor that a child inherits, so that the heartbeat process learns when the
    worker and all its children are gone. `modules` are imported by children that are not started for an
    application file.
    """

    def __init__(
        self,
        command: Sequence[str],
        database: Database,
        heartbeat_fd: Callable[[], int | None],
        task_types: Collection[str],
        max_tasks_per_child: int = MAX_TASKS_PER_CHILD,
        modules: Sequence[str] = (),
    ) -> None:
        self.task_types = task_types
        self._command = list(command)
        self._modules = list(modules)
        self._database = database
        self._heartbeat_fd = heartbeat_fd
        self._max_tasks_per_child = max_tasks_per_child
        # Starting a child costs most of the CPU time, so only as many start at once as there are cores.
        self._start_slots = asyncio.Semaphore(max(1, os.cpu_count() or 1))
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._idle_timers: dict[ChildProcess, asyncio.TimerHandle] = {}

    async def run_attempt(self, attempt: Attempt) -> TaskOutcome | None:
        """Run one attempt in a child process. Return None if there is no outcome to record."""
        try:
            child = await self._acquire_child(attempt)
        except ChildDiedError as death:
            return death.to_outcome(attempt, started=False)
        if child is None or attempt.stop_reason is not None:
            if child is not None:
                self._release_child(child)
            return build_stop_outcome(attempt, detail=", most of it waiting for its child process to start")
        try:
            outcome = await child.run_attempt(attempt)
        except ChildDiedError as death:
            self._all.discard(child)
            return death.to_outcome(attempt, started=True)
        except BaseException:
            self._all.discard(child)
            child.kill()
            raise
        self._release_child(child)
        return outcome

    async def close(self) -> None:
        for timer in self._idle_timers.values():
            timer.cancel()
        children, self._all, self._idle = self._all, set[ChildProcess](), []
        await asyncio.gather(*(child.end_process() for child in children), return_exceptions=True)

    async def _acquire_child(self, attempt: Attempt) -> ChildProcess | None:
        # There is no child to interrupt yet. If the attempt is stopped meanwhile, it does not start.
        attempt.on_stop = lambda _: None
        return self._take_idle_child() or await self._wait_for_child(attempt)

    def _take_idle_child(self) -> ChildProcess | None:
        while self._idle:
            child = self._idle.pop()
            self._idle_timers.pop(child).cancel()
            if child.is_alive:
                return child
            self._all.discard(child)
        return None

    async def _wait_for_child(self, attempt: Attempt) -> ChildProcess | None:
        """Start a child process, unless another child becomes idle first.

        After a crash, many suspects may wait here.
        """
        async with self._start_slots:
            if attempt.stop_reason is not None:
                return None
            return self._take_idle_child() or await self._start_child()

    async def _start_child(self) -> ChildProcess:
        child = ChildProcess(self._command, self._database, self._heartbeat_fd(), modules=self._modules)
        self._all.add(child)
        try:
            await child.start()
        except BaseException:
            self._all.discard(child)
            child.kill()
            raise
        return child

    def _release_child(self, child: ChildProcess) -> None:
        if not child.is_alive or child.task_count >= self._max_tasks_per_child:
            self._end_child(child)
            return
        self._idle.append(child)
        loop = asyncio.get_running_loop()
        self._idle_timers[child] = loop.call_later(MAX_CHILD_IDLE_S, self._end_idle_child, child)

    def _end_idle_child(self, child: ChildProcess) -> None:
        self._idle_timers.pop(child, None)
        if child in self._idle:
            self._idle.remove(child)
            self._end_child(child)

    def _end_child(self, child: ChildProcess) -> None:
        self._all.discard(child)
        ending = asyncio.ensure_future(child.end_process())
        ending.add_done_callback(_ignore_exception)


def _ignore_exception(future: asyncio.Future[None]) -> None:
    with contextlib.suppress(BaseException):
        future.exception()
