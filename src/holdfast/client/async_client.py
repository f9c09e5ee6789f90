"""The methods of a client for code with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Self
from uuid import UUID

from holdfast.client.alerts import Alerts
from holdfast.client.batches import Batches
from holdfast.client.connections import ClientConnections
from holdfast.client.erasures import DEFAULT_ERASURE_TIME, merge_erasures, run_erasure
from holdfast.client.files import Files
from holdfast.client.limits import Limits
from holdfast.client.messages.queues import Queues
from holdfast.client.schedules import Schedules
from holdfast.client.submission import JobSubmission
from holdfast.definitions.ids import shard_of
from holdfast.definitions.job_types import JobType
from holdfast.engine.connection import Connection, Database
from holdfast.engine.erasures import Erasure
from holdfast.engine.limits import pause_queue, resume_queue
from holdfast.engine.queues import check_queue_name, list_queue_names
from holdfast.errors import NotFoundError
from holdfast.settings import Settings


class AsyncClient(JobSubmission):
    """The asynchronous methods of a client. `Client` adds the blocking methods."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        job_types: Iterable[JobType[Any]] = (),
        shards: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(ClientConnections(url, settings, shards), job_types)
        self.queues = Queues(self._connections)
        self.files = Files(self._connections)
        self.schedules = Schedules(self._connections, self)
        self.batches = Batches(self._connections, self)
        self.limits = Limits(self._connections)
        self.alerts = Alerts(self._connections)
        self._shard_clients: dict[int, Self] = {}

    @property
    def settings(self) -> Settings:
        """The client's settings: passed to the client, or read from the environment."""
        return self._connections.settings

    @property
    def shard_numbers(self) -> list[int]:
        """The numbers of the client's shards, or an empty list if the client has one database."""
        return [] if self._connections.shards is None else list(self._connections.shards.urls)

    def shard(self, number: int) -> Self:
        """Return a client of one shard, with all methods: `client.shard(2).files.list(owner="ann")`."""
        router = self._connections.shards
        if router is None or number not in router.urls:
            known = ", ".join(map(str, self.shard_numbers)) or "none: this client has one database"
            raise NotFoundError(f"Shard {number} does not exist.", fix=f"The shards are {known}.")
        if number not in self._shard_clients:
            self._shard_clients[number] = type(self)(
                router.urls[number].reveal(), settings=self.settings, job_types=self.job_types.values()
            )
        return self._shard_clients[number]

    def shard_for(self, id: UUID | str) -> Self:  # noqa: A002
        """Return the client of the shard that created a job. Without shards it is the client itself."""
        return self if self._connections.shards is None else self.shard(shard_of(id))

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
        for client in self._shard_clients.values():
            await client.close()
        await self._connections.close()

    async def __aenter__(self) -> Self:
        await self._connections.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def pause_queue(
        self, queue: str, *, reason: str | None = None, by: str | None = None, allow_new: bool = False
    ) -> None:
        """Pause a queue: workers claim none of its tasks until you resume it. Running tasks continue.

        Raise `NotFoundError` with the most similar name if the queue does not exist. A deployment that pauses
        a queue before its first task passes `allow_new=True`.
        """
        if not allow_new:
            names = await self._connections.run_on_all(list_queue_names)
            fix = "Pass allow_new=True for a queue that has no tasks yet."
            check_queue_name(queue, [name for shard_names in names for name in shard_names], fix=fix)
        await self._connections.run_on_all(
            lambda connection: pause_queue(connection, queue, reason=reason, by=by)
        )

    async def resume_queue(self, queue: str) -> bool:
        """Resume a paused queue. Return False if the queue was not paused."""
        return any(await self._connections.run_on_all(lambda connection: resume_queue(connection, queue)))

    async def erase_owner(
        self, owner: str, *, by: str | None = None, within: timedelta | float = DEFAULT_ERASURE_TIME
    ) -> Erasure:
        """Delete everything of an owner: jobs, files, messages, settings, and the rows of all systems.

        Running jobs are cancelled. The request is written to the audit log with `by`, the person or program
        that asked (default: the database role). If the time is over or the process dies, the erasure is not
        finished: the next call continues it, and so does any worker. Block the user in your application
        first, because what the user starts meanwhile is erased too. A client with shards erases the owner on
        all of them, and raises an error if one does not answer.
        """
        return merge_erasures(
            await asyncio.gather(
                *(
                    run_erasure(connections, self.files, owner, by=by, within=within)
                    for connections in await self._connections.open_all()
                )
            )
        )


async def open_client_database(client: AsyncClient) -> Database:
    """Return the client's connection pool for the running event loop."""
    return await client._connections.open_database()  # pyright: ignore[reportPrivateUsage]


async def find_message_queue_shard(client: AsyncClient, name: str) -> int:
    """Return the number of the shard of a message queue."""
    router = client._connections.shards  # pyright: ignore[reportPrivateUsage]
    return 0 if router is None else await router.find_message_queue_shard(name)


async def find_schedule_shard(client: AsyncClient, name: str) -> int:
    """Return the number of the shard of a schedule."""
    router = client._connections.shards  # pyright: ignore[reportPrivateUsage]
    return 0 if router is None else await router.find_schedule_shard(name)
