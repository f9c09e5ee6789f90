"""A background thread with an event loop, which runs coroutines for code that has no event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from holdfast.client.forking import keep_alive_forever, register_fork_aware
from holdfast.engine.caller_connection import is_sync_connection
from holdfast.errors import InvalidError

T = TypeVar("T")

_END_OF_ITERATION = object()


class LoopThread:
    """Runs coroutines in one background thread. The thread starts with the first call.

    A client has one loop thread, so all threads of a process share its connection pool.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = asyncio.Event()
        self._finalizer: weakref.finalize[..., LoopThread] | None = None
        register_fork_aware(self)

    def run(self, coroutine: Coroutine[Any, Any, T], on: object = None) -> T:
        """Run a coroutine in the background thread and return its result.

        With a synchronous connection `on`, the coroutine runs in the calling thread: Django and other
        libraries allow their connections in no other thread.
        """
        if on is not None:
            return _run_in_calling_thread(coroutine, on)
        _refuse_running_loop(coroutine)
        with self._lock:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._start_thread())
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("client.blocking was closed during this call") from None
        except BaseException:  # such as KeyboardInterrupt in the calling thread
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an asynchronous iterator."""

        async def fetch_next() -> Any:
            return await anext(items, _END_OF_ITERATION)

        async def close() -> None:
            await items.aclose()  # type: ignore[attr-defined]

        try:
            while (item := self.run(fetch_next())) is not _END_OF_ITERATION:
                yield item
        finally:
            if hasattr(items, "aclose"):
                self.run(close())

    @contextmanager
    def enter(self, manager: AbstractAsyncContextManager[T]) -> Generator[T]:
        """Enter an asynchronous context manager for the time of a block."""

        async def enter() -> T:
            return await manager.__aenter__()

        async def leave(*error: Any) -> bool | None:
            return await manager.__aexit__(*error)

        value = self.run(enter())
        try:
            yield value
        except BaseException as error:
            if not self.run(leave(type(error), error, error.__traceback__)):
                raise
        else:
            self.run(leave(None, None, None))

    def close(self) -> None:
        """Close the connections and end the thread. Calls that wait in other threads raise RuntimeError.

        The next call starts a new thread.
        """
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
            stop = self._stop
            self._detach_finalizer()
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(stop.set)
            thread.join()

    def drop_inherited_state(self) -> None:
        """Discard the background thread in a forked child process, which does not have the thread."""
        keep_alive_forever((self._loop, self._thread, self._stop))
        self._lock = threading.Lock()
        self._loop = None
        self._thread = None
        self._detach_finalizer()

    def _detach_finalizer(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None

    def _start_thread(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the running thread. The caller holds the lock."""
        if self._loop is None:
            started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
            self._stop = asyncio.Event()
            self._thread = threading.Thread(
                target=_run_event_loop,
                args=(started, self._stop),
                name="holdfast client.blocking",
                daemon=True,
            )
            self._thread.start()
            self._loop = started.result()
            # A client that is garbage-collected without `close` does not leave its thread behind.
            self._finalizer = weakref.finalize(self, self._loop.call_soon_threadsafe, self._stop.set)
            self._finalizer.atexit = False
        return self._loop


def _run_event_loop(
    started: concurrent.futures.Future[asyncio.AbstractEventLoop], stop: asyncio.Event
) -> None:
    """Run an event loop until `stop` is set. `asyncio.run` then cancels calls and closes connections."""

    async def wait() -> None:
        started.set_result(asyncio.get_running_loop())
        await stop.wait()

    asyncio.run(wait())


def _run_in_calling_thread(coroutine: Coroutine[Any, Any, T], on: object) -> T:
    try:
        synchronous = is_sync_connection(on)
        if synchronous:
            coroutine.send(None)  # nothing in it waits, because the connection is synchronous
    except StopIteration as returned:
        value: T = returned.value
        return value
    finally:
        coroutine.close()
    raise InvalidError(
        f"on= got an asynchronous connection of {type(on).__module__}, which needs an event loop.",
        fix="Use the asynchronous client with it.",
        field="on",
    )


def _refuse_running_loop(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Refuse a call that would block a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    coroutine.close()
    raise RuntimeError("client.blocking is for code without an event loop; await the method of the client")
