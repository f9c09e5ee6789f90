"""Threads for plain functions: started when needed, bounded in number, and not waited for at the end.

Results return to the event loop in batches: a thread that finishes while other results are on their way adds
its own to them, so that many short functions cost one wakeup of the loop instead of one each.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

ThreadCall = tuple["asyncio.Future[Any]", contextvars.Context, Callable[[], Any]]
ThreadResult = tuple["asyncio.Future[Any]", Any, BaseException | None]


class TaskThreadPool:
    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._calls: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._results: deque[ThreadResult] = deque()
        self._pending_count = 0  # calls whose results the loop has not received; only the loop counts
        self._thread_count = 0
        self._stuck_count = 0
        self._delivery_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call a function in a thread, with the context variables of the caller."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._pending_count += 1
        max_threads = self._max_threads + self._stuck_count
        if self._pending_count > self._thread_count and self._thread_count < max_threads:
            self._thread_count += 1
            threading.Thread(
                target=self._run_queued_functions, name=f"task-{self._thread_count}", daemon=True
            ).start()
        self._calls.put((future, contextvars.copy_context(), function))
        return future

    def allow_replacement_thread(self) -> None:
        """Allow one more thread, because one is stuck in a call that does not return."""
        self._stuck_count += 1

    def close(self) -> None:
        """End idle threads. Busy threads end with the process.

        Nothing can stop a busy thread.
        """
        for _ in range(self._thread_count):
            self._calls.put(None)

    def _run_queued_functions(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            future, context, function = call
            try:
                result: ThreadResult = (future, context.run(function), None)
            except BaseException as error:  # also SystemExit: the task fails, the thread goes on
                result = (future, None, error)
            del call, future, context, function
            self._enqueue_result(result)

    def _enqueue_result(self, result: ThreadResult) -> None:
        self._results.append(result)
        if not self._delivery_scheduled and self._loop is not None:
            self._delivery_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver_results)
            except RuntimeError:  # the loop is closed: nobody waits for results any more
                return

    def _deliver_results(self) -> None:
        # Cleared first: a result that arrives later is either taken below or schedules another delivery.
        self._delivery_scheduled = False
        while self._results:
            future, value, error = self._results.popleft()
            self._pending_count -= 1
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            elif isinstance(error, StopIteration):  # a future does not accept it
                future.set_exception(RuntimeError(f"the task raised {error!r}"))
            else:
                future.set_exception(error)
