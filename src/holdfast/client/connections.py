"""The database connections of a client: one pool and one listener for each event loop that uses the client.

A pool belongs to the event loop that opened it, so a client that is used in several loops has several pools.
The pool of a loop is closed by `Client.close`, or with the loop: `asyncio.run` finalizes asynchronous
generators before it closes its loop, and a generator that ends with the pool (`_close_with_loop`) uses this.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from holdfast import settings as settings_module
from holdfast.client.forking import keep_alive_forever, register_fork_aware
from holdfast.client.job_watcher import JobWatcher
from holdfast.client.shard_router import ShardRouter
from holdfast.engine import embedded
from holdfast.engine.connection import Connection, Database
from holdfast.errors import RefusedError
from holdfast.setting_values import parse_shards
from holdfast.settings import Secret, Settings

T = TypeVar("T")


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
    """The database connections of a client: one pool and one listener per event loop.

    `for_id`, `for_name` and `for_submit` return the connections of the shard that a call needs. Without
    shards these are the connections themselves.
    """

    def __init__(
        self, url: str | None, settings: Settings | None, shards: Mapping[int, str] | None = None
    ) -> None:
        self._url = Secret(url) if url else None
        self._shards = shards
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

    @cached_property
    def shards(self) -> ShardRouter[ClientConnections] | None:
        """The shards of the client, or None if it has one database."""
        urls = {number: Secret(url) for number, url in (self._shards or {}).items()}
        if not urls and self._url is None and self.settings.shards is not None:
            urls = parse_shards(self.settings.shards.reveal())
        if not urls:
            return None
        return ShardRouter(urls, lambda url: ClientConnections(url.reveal(), self._settings))

    async def for_id(self, id: UUID | str) -> ClientConnections:  # noqa: A002
        """Return the connections of the database that created an id."""
        return self if self.shards is None else await self.shards.for_id(id)

    async def for_name(self, name: str) -> ClientConnections:
        """Return the connections of the database of a schedule."""
        return self if self.shards is None else await self.shards.for_name(name)

    async def for_submit(self, request: Mapping[str, Any]) -> ClientConnections:
        """Return the connections of the database that a job is submitted to."""
        return self if self.shards is None else await self.shards.for_submit(request)

    async def for_message_queue(self, name: str) -> ClientConnections:
        """Return the connections of the database of a message queue."""
        if self.shards is None:
            return self
        return await self.shards.open_shard(await self.shards.find_message_queue_shard(name))

    async def open_all(self) -> Sequence[ClientConnections]:
        """Return the connections of each shard, or of the one database."""
        if self.shards is None:
            return [self]
        return [await self.shards.open_shard(number) for number in self.shards.shards]

    async def open(self) -> None:
        """Open the pool of the running event loop. Shards are opened when needed: one may be dead."""
        if self.shards is None:
            await self.open_database()

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

    async def run_on_all(self, change: Callable[[Connection], Awaitable[T]]) -> list[T]:
        """Run a change on the database, or on all shards. Raise the first error after all were asked."""
        if self.shards is None:
            async with self.connection() as connection:
                return [await change(connection)]
        answers, failures = await self.shards.ask_all(change)
        for error in failures.values():
            raise error
        return list(answers.values())

    async def close(self) -> None:
        """Close the connections of the running event loop. The next call opens new connections."""
        if "shards" in self.__dict__ and self.shards is not None:
            await self.shards.close()
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
        if self.shards is not None:
            raise RefusedError(
                "This call needs one shard, and this client has several.",
                fix="Call it on one shard: client.shard(1), client.shard_for(job_id), or holdfast --shard 1.",
            )
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
