"""The client: submit work, read it, wait for it and control it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.client.async_client import AsyncClient, open_client_database
from holdfast.client.batches import BatchHandle
from holdfast.client.blocking import BlockingClient
from holdfast.client.handles import JobHandle
from holdfast.definitions.job_types import JobType
from holdfast.settings import Settings

__all__ = ["BatchHandle", "BlockingClient", "Client", "JobHandle", "open_client_database"]


class Client(AsyncClient):
    """A client of Holdfast: submits jobs, reads them, waits for them and controls them.

    `Client()` uses DATABASE_URL, or the embedded PostgreSQL if it is not set. A client opens connections when
    it needs them. One client can be used in several event loops and threads at once, through
    `client.blocking` in code without an event loop, and after a fork.

    With `shards={1: "postgresql://...", 2: "postgresql://..."}` (or HOLDFAST_SHARDS) the client routes work
    to several independent databases; see `docs/operate/shards.md`.

    The parts of a client are `queues`, `files`, `schedules`, `batches`, `limits`, `alerts` and `blocking`.

    >>> from holdfast import Client, task
    >>> client = Client()
    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> async def main() -> None:
    ...     handle = await client.submit(double(21), key="double:21")
    ...     print(await client.get(handle.id))
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        job_types: Iterable[JobType[Any]] = (),
        shards: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(url, settings=settings, job_types=job_types, shards=shards)
        self.blocking = BlockingClient(self)
