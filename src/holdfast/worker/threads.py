"""Threads for plain functions: made when needed, never more than asked for, and not waited for at the end.

Results come back to the loop together: a thread that finishes while others' results are on their way adds its
own to them, so that many short functions cost one wake-up of the loop and not one each.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Result = tuple["asyncio.Future[Any]", Any, BaseException | None]
Job = tuple["asyncio.Future[Any]", contextvars.Context, Callable[[], Any]]


class Threads:
    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[Result] = deque()
        self._busy = 0  # jobs whose results the loop has not seen; only the loop counts
        self._count = 0
        self._lost = 0
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call it in a thread, with the caller's context variables."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._busy += 1
        if self._busy > self._count and self._count < self._most + self._lost:
            self._count += 1
            threading.Thread(target=self._work, name=f"task-{self._count}", daemon=True).start()
        self._jobs.put((future, contextvars.copy_context(), function))
        return future

    def give_up(self) -> None:
        """A thread is in a call that does not come back: another one may take its place."""
        self._lost += 1

    def close(self) -> None:
        """Idle threads end. Busy ones end with the process: nothing can stop them."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            future, context, function = job
            try:
                result: Result = (future, context.run(function), None)
            except BaseException as problem:  # also SystemExit: the task fails, the thread stays
                result = (future, None, problem)
            del job, future, context, function
            self._hand_over(result)

    def _hand_over(self, result: Result) -> None:
        self._done.append(result)
        if not self._told and self._loop is not None:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _deliver(self) -> None:
        self._told = False  # first: what comes after this either is taken below or tells again
        while self._done:
            future, value, problem = self._done.popleft()
            self._busy -= 1
            if future.done():
                continue
            if problem is None:
                future.set_result(value)
            elif isinstance(problem, StopIteration):  # a future refuses it
                future.set_exception(RuntimeError(f"the task raised {problem!r}"))
            else:
                future.set_exception(problem)
