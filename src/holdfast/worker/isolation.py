"""Child processes for tasks that ask for one, and for suspects: one task at a time, and it can be killed.

Children are started anew (not forked: threads and connections would leak), import the application, and serve
task after task until they have done enough of them or idled for long. Memory is watched from here, as what
the child and everything it started really hold (anonymous pages): limits of the system count address space,
which numeric and browser code reserves by gigabytes and never touches, and end in errors far from the cause.
A child that dies is a crash of its task alone, told with the signal, the peak of its memory and its last
lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Sequence

from holdfast.engine.connection import Database
from holdfast.worker.executor import Verdict, timed_out
from holdfast.worker.isolation_process import Child, ChildDied
from holdfast.worker.running import HANDED_BACK, TIME_LIMIT, Attempt

RECYCLE_AFTER = 100
IDLE_SECONDS = 60.0


class Children:
    def __init__(
        self,
        command: Sequence[str],
        database: Database,
        line: Callable[[], int | None],
        types: Collection[str],
        most_tasks: int = RECYCLE_AFTER,
    ) -> None:
        self.types = types
        self._command = list(command)
        self._database = database
        self._line = line
        self._most_tasks = most_tasks
        self._starting = asyncio.Semaphore(max(1, os.cpu_count() or 1))  # starting is what costs
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._timers: dict[Child, asyncio.TimerHandle] = {}

    async def run(self, attempt: Attempt) -> Verdict | None:
        """One task in a child. None: it was stopped and there is nothing to say."""
        try:
            child = await self._take(attempt)
        except ChildDied as problem:
            return problem.verdict(attempt, started=False)
        if child is None or attempt.stopped is not None:
            if child is not None:
                self._give_back(child)
            return stopped_early(attempt)
        try:
            verdict = await child.perform(attempt)
        except ChildDied as problem:
            self._all.discard(child)
            return problem.verdict(attempt, started=True)
        except BaseException:
            self._all.discard(child)
            child.kill()
            raise
        self._give_back(child)
        return verdict

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        everyone, self._all, self._idle = self._all, set[Child](), []
        await asyncio.gather(*(child.end() for child in everyone), return_exceptions=True)

    async def _take(self, attempt: Attempt) -> Child | None:
        # Until there is a child there is nobody to tell; if it is stopped meanwhile, the child is not used.
        attempt.on_stop = lambda _: None
        return self._waiting_one() or await self._next_one(attempt)

    def _waiting_one(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            self._timers.pop(child).cancel()
            if child.alive:
                return child
            self._all.discard(child)
        return None

    async def _next_one(self, attempt: Attempt) -> Child | None:
        """A new one, unless one becomes free first: after a crash a hundred suspects may ask at once."""
        async with self._starting:
            if attempt.stopped is not None:
                return None
            return self._waiting_one() or await self._new_one()

    async def _new_one(self) -> Child:
        child = Child(self._command, self._database, self._line())
        self._all.add(child)
        try:
            await child.start()
        except BaseException:
            self._all.discard(child)
            child.kill()
            raise
        return child

    def _give_back(self, child: Child) -> None:
        if not child.alive or child.tasks >= self._most_tasks:
            self._retire(child)
            return
        self._idle.append(child)
        loop = asyncio.get_running_loop()
        self._timers[child] = loop.call_later(IDLE_SECONDS, self._retire_idle, child)

    def _retire_idle(self, child: Child) -> None:
        self._timers.pop(child, None)
        if child in self._idle:
            self._idle.remove(child)
            self._retire(child)

    def _retire(self, child: Child) -> None:
        self._all.discard(child)
        ending = asyncio.ensure_future(child.end())
        ending.add_done_callback(_look_away)


def stopped_early(attempt: Attempt) -> Verdict | None:
    if attempt.stopped == TIME_LIMIT:
        return timed_out(attempt.task, more=", most of it waiting for its child process to start")
    return Verdict("release", None, attempt.stopped) if attempt.stopped in HANDED_BACK else None


def _look_away(ending: asyncio.Future[None]) -> None:
    with contextlib.suppress(BaseException):
        ending.exception()
