"""The methods of a client for code with an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Self

from holdfast.client.batches import Batches
from holdfast.client.connections import ClientConnections
from holdfast.client.erasures import DEFAULT_ERASURE_TIME, run_erasure
from holdfast.client.files import Files
from holdfast.client.limits import Limits
from holdfast.client.messages.queues import Queues
from holdfast.client.schedules import Schedules
from holdfast.client.submission import JobSubmission
from holdfast.definitions.job_types import JobType
from holdfast.engine.connection import Connection, Database
from holdfast.engine.erasures import Erasure
from holdfast.engine.limits import pause_queue, resume_queue
from holdfast.settings import Settings


class AsyncClient(JobSubmission):
    """The asynchronous methods of a client. `Client` adds the blocking methods."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        job_types: Iterable[JobType[Any]] = (),
    ) -> None:
        super().__init__(ClientConnections(url, settings), job_types)
        self.queues = Queues(self._connections)
        self.files = Files(self._connections)
        self.schedules = Schedules(self._connections, self)
        self.batches = Batches(self._connections, self)
        self.limits = Limits(self._connections)

    @property
    def settings(self) -> Settings:
        """The client's settings: passed to the client, or read from the environment."""
        return self._connections.settings

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Borrow an asyncpg connection of the client's pool for your own SQL, outside any transaction.

        `async with client.connection() as connection: await connection.fetch("select 1")`
        """
        return self._connections.connection()

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """Borrow an asyncpg connection of the client's pool with an open transaction.

        The transaction commits at the end of the block and rolls back on an exception. Pass the connection
        to `submit(on=connection)` to make a job part of the transaction.
        """
        return self._connections.transaction()

    async def close(self) -> None:
        """Close the connections of the running event loop. The next call opens new connections.

        Connections are also closed with their event loop. `client.blocking.close()` closes those of
        `client.blocking`.
        """
        await self._connections.close()

    async def __aenter__(self) -> Self:
        await self._connections.open_database()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def pause_queue(self, queue: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Pause a queue: workers claim none of its tasks until you resume it. Running tasks continue."""
        async with self._connections.connection() as connection:
            await pause_queue(connection, queue, reason=reason, by=by)

    async def resume_queue(self, queue: str) -> bool:
        """Resume a paused queue. Return False if the queue was not paused."""
        async with self._connections.connection() as connection:
            return await resume_queue(connection, queue)

    async def erase_owner(
        self, owner: str, *, by: str | None = None, within: timedelta = DEFAULT_ERASURE_TIME
    ) -> Erasure:
        """Delete everything of an owner: jobs, files, messages, settings, and the rows of all systems.

        Running jobs are cancelled. The request is written to the audit log with `by`, the person or program
        that asked (default: the database role). If the time is over or the process dies, the erasure is not
        finished: the next call continues it, and so does any worker. Block the user in your application
        first, because what the user starts meanwhile is erased too.
        """
        return await run_erasure(self._connections, self.files, owner, by=by, within=within)


async def open_client_database(client: AsyncClient) -> Database:
    """Return the client's connection pool for the running event loop."""
    return await client._connections.open_database()  # pyright: ignore[reportPrivateUsage]
