"""The same client for code without an event loop: `client.blocking`.

One thread with one loop serves all calls, so there is one implementation and no twin. A synchronous
connection given with `on=` is used in the caller's own thread, where Django and others insist on it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.client.bodies import Say
from holdfast.client.files import BlockingFiles
from holdfast.client.handles import JobHandle
from holdfast.client.messages.blocking import BlockingQueues
from holdfast.client.schedules import BlockingSchedules
from holdfast.definitions.graphs import Graph
from holdfast.definitions.tasks import Call
from holdfast.engine import borrowed
from holdfast.model import Job, JobPage, Reason

if TYPE_CHECKING:
    from holdfast.client import Client

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class BlockingClient:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.queues = BlockingQueues(client.queues, self.run)
        self.files = BlockingFiles(client.files, self.run)
        self.schedules = BlockingSchedules(client.schedules, self.run)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    @overload
    def submit(self, work: Call[R], *, on: object = None, **say: Unpack[Say]) -> BlockingHandle[R]: ...
    @overload
    def submit(self, work: Graph, *, on: object = None, **say: Unpack[Say]) -> BlockingHandle[Any]: ...
    def submit(
        self, work: Call[Any] | Graph, *, on: object = None, **say: Unpack[Say]
    ) -> BlockingHandle[Any]:
        if on is not None:
            body = self._client.body(work, say)
            handle = self._client.handle(work, borrowed.submit_sync(on, body))
        else:
            handle = self.run(self._client.submit(work, **say))
        return BlockingHandle(self, handle)

    def submit_many(self, calls: Iterable[Call[R]], **say: Unpack[Say]) -> list[BlockingHandle[R]]:
        handles = self.run(self._client.submit_many(calls, **say))
        return [BlockingHandle(self, handle) for handle in handles]

    def get(self, job: UUID | str) -> Job:
        return self.run(self._client.get(job))

    def cancel(self, job: UUID | str, *, reason: str | None = None) -> Job:
        return self.run(self._client.cancel(job, reason=reason))

    def retry(self, job: UUID | str, *, from_tasks: Iterable[str] | None = None) -> Job:
        return self.run(self._client.retry(job, from_tasks=from_tasks))

    def explain(self, job: UUID | str) -> list[Reason]:
        return self.run(self._client.explain(job))

    def jobs(self, search: str = "", **where: Any) -> JobPage:
        return self.run(self._client.jobs(search, **where))

    def close(self) -> None:
        if self._loop is not None:
            self.run(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something asynchronous. Not from a running loop: it would block it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result()
        work.close()
        raise RuntimeError("client.blocking is for code without an event loop; await the client itself here")

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name="holdfast", daemon=True).start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class BlockingHandle(Generic[R_co]):
    def __init__(self, client: BlockingClient, handle: JobHandle[R_co]) -> None:
        self._client = client
        self._handle = handle
        self.id = handle.id
        self.created = handle.created

    def get(self) -> Job:
        return self._client.run(self._handle.get())

    def cancel(self, *, reason: str | None = None) -> Job:
        return self._client.run(self._handle.cancel(reason=reason))

    def result(self, *, within: timedelta | None = None) -> R_co:
        return self._client.run(self._handle.result(within=within))
