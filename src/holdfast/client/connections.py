"""The database connections of a client: one pool and one listener for each event loop that uses the client.

A pool belongs to the event loop that opened it, so a client that is used in several loops has several pools.
The pool of a loop is closed by `Client.close`, or with the loop: `asyncio.run` finalizes asynchronous
generators before it closes its loop, and a generator that ends with the pool (`_close_with_loop`) uses this.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast import settings as settings_module
from holdfast.client.forking import keep_alive_forever, register_fork_aware
from holdfast.client.job_watcher import JobWatcher
from holdfast.engine import embedded
from holdfast.engine.connection import Connection, Database
from holdfast.settings import Secret, Settings


class LoopConnections:
    """The connection pool and the job watcher of one event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.watcher = JobWatcher(database)
        self.lifetime: AsyncGenerator[None] | None = None

    async def close(self) -> None:
        """Close the notification listener and the connection pool."""
        await self.watcher.close()
        await self.database.close()


class ClientConnections:
    """The database connections of a client: one pool and one listener per event loop."""

    def __init__(self, url: str | None, settings: Settings | None) -> None:
        self._url = Secret(url) if url else None
        self._settings = settings
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        self._lock = threading.Lock()
        self._locate_lock = threading.Lock()
        self._located_url: Secret | None = None
        self._embedded_server: embedded.EmbeddedServer | None = None
        self._open_loop_count = 0  # loops that use the embedded server, or are about to
        register_fork_aware(self)

    @property
    def settings(self) -> Settings:
        """The client's settings: passed to the client, or read from the environment at first use."""
        if self._settings is None:
            self._settings = settings_module.load_settings()
        return self._settings

    async def open_database(self) -> Database:
        """Return the connection pool of the running event loop. The first call creates the pool."""
        loop = asyncio.get_running_loop()
        return (self._by_loop.get(loop) or await self._open_connections(loop)).database

    async def open_watcher(self) -> JobWatcher:
        """Return the job watcher of the running event loop."""
        loop = asyncio.get_running_loop()
        return (self._by_loop.get(loop) or await self._open_connections(loop)).watcher

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Borrow a connection from the pool, outside any transaction."""
        async with (await self.open_database()).connection() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Borrow a connection from the pool with a transaction that ends with the block."""
        async with (await self.open_database()).transaction() as connection:
            yield connection

    async def close(self) -> None:
        """Close the connections of the running event loop. The next call opens new connections."""
        with self._lock:
            current = self._by_loop.pop(asyncio.get_running_loop(), None)
        if current is not None and current.lifetime is not None:
            await current.lifetime.aclose()

    def drop_inherited_state(self) -> None:
        """Discard the parent's connections in a forked child process.

        The child shares the parent's claim on the embedded server.
        """
        keep_alive_forever(self._by_loop)
        self._by_loop = {}
        self._lock = threading.Lock()
        self._locate_lock = threading.Lock()
        self._open_loop_count = 0

    async def _open_connections(self, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        with self._lock:
            self._open_loop_count += 1
        try:
            url = self._url or await self._find_database_url()
        except BaseException:
            self._release_embedded_server()
            raise
        with self._lock:
            existing = self._by_loop.get(loop)
            opened = existing or LoopConnections(Database(url, self.settings))
            if existing is None:
                self._drop_closed_loops()
                self._by_loop[loop] = opened
        if existing is not None:  # another task of this loop was faster
            self._release_embedded_server()
            return existing
        opened.lifetime = self._close_with_loop(loop, opened)
        await anext(opened.lifetime)  # runs to its `yield`: from here on, the loop closes it
        return opened

    async def _close_with_loop(
        self, loop: asyncio.AbstractEventLoop, opened: LoopConnections
    ) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            with self._lock:
                if self._by_loop.get(loop) is opened:
                    del self._by_loop[loop]
            try:
                await opened.close()
            finally:
                self._release_embedded_server()

    def _drop_closed_loops(self) -> None:
        """Discard the connections of event loops that were closed without a shutdown.

        Nothing can be awaited in a closed loop any more.
        """
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            self._by_loop.pop(loop).database.abandon()
            self._open_loop_count -= 1

    def _release_embedded_server(self) -> None:
        with self._lock:
            self._open_loop_count -= 1
            if self._open_loop_count > 0 or self._embedded_server is None:
                return
            server, self._embedded_server, self._located_url = self._embedded_server, None, None
        server.release()

    async def _find_database_url(self) -> Secret:
        """Return DATABASE_URL, or start the embedded server and return its URL."""
        url = self._located_url
        return await asyncio.to_thread(self._find_database_url_once) if url is None else url

    def _find_database_url_once(self) -> Secret:
        with self._locate_lock:
            if self._located_url is not None:
                return self._located_url
            url, self._embedded_server = embedded.locate_database(self.settings)
            self._located_url = url
            return url
