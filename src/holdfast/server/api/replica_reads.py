"""Lists, searches and metrics that may be a little old: read from a replica if there is one.

Nothing that decides or changes anything reads from here. If the replica does not answer, the primary is read
instead, and the replica is not asked again for some seconds, so that no page waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeVar

from holdfast.engine import replicas
from holdfast.engine.connection import Connection, Database
from holdfast.errors import DatabaseError, SchemaError
from holdfast.settings import Settings

T = TypeVar("T")
TransactionOpener = Callable[[Database], AbstractAsyncContextManager[Connection]]

RETRY_REPLICA_AFTER_S: Final = 10.0
REPLICA_CONNECT_TIMEOUT: Final = timedelta(seconds=2)
NEW_DATA_AGE_S: Final = 1.0
DATA_AGE_HEADER: Final = "holdfast-data-age"
READ_SOURCE_HEADER: Final = "holdfast-read-source"
_STATEMENT_TIMEOUT_CODE: Final = "57014"
_log = logging.getLogger("holdfast.server")


@dataclass(frozen=True)
class ReadSource:
    """Where a response was read from. `age_s` is the age of its data, or None if it is not known."""

    name: str  # "primary", "replica" or "primary, because the replica is unavailable"
    age_s: float | None = 0.0
    note: str | None = None  # for people

    @property
    def headers(self) -> dict[str, str]:
        age = "unknown" if self.age_s is None else f"{max(self.age_s, 0.0):.1f}"
        return {READ_SOURCE_HEADER: self.name, DATA_AGE_HEADER: age}


PRIMARY = ReadSource("primary")
PRIMARY_INSTEAD = ReadSource(
    "primary, because the replica is unavailable",
    note="The read replica does not answer. This page shows the primary.",
)


class ReplicaReads:
    """Runs reads on the replica of the setting `read_url`, or on the primary."""

    def __init__(self, primary: Database, settings: Settings) -> None:
        self._primary = primary
        self._replica: Database | None = None
        self._retry_at = 0.0
        if settings.read_url is not None:
            timeout = min(settings.connect_timeout, REPLICA_CONNECT_TIMEOUT)
            self._replica = Database(settings.read_url, replace(settings, connect_timeout=timeout))

    @property
    def has_replica(self) -> bool:
        return self._replica is not None

    async def run_read(
        self, open_transaction: TransactionOpener, read: Callable[[Connection], Awaitable[T]]
    ) -> tuple[T, ReadSource]:
        """Run `read` in a transaction on the replica, or on the primary if the replica fails."""
        if self._replica is not None and time.monotonic() >= self._retry_at:
            try:
                async with open_transaction(self._replica) as connection:
                    state = await replicas.get_replica_state(connection)
                    return await read(connection), _describe_replica(state)
            except (DatabaseError, SchemaError) as error:
                if _STATEMENT_TIMEOUT_CODE in error.message:
                    raise  # the same statement would take as long on the primary
                self._retry_at = time.monotonic() + RETRY_REPLICA_AFTER_S
                _log.warning("The read replica failed, so the primary is read: %s", error)
        async with open_transaction(self._primary) as connection:
            return await read(connection), PRIMARY if self._replica is None else PRIMARY_INSTEAD

    async def close(self) -> None:
        if self._replica is not None:
            await self._replica.close()


def _describe_replica(state: replicas.ReplicaState) -> ReadSource:
    if not state.is_replica:
        return ReadSource("primary", note="HOLDFAST_READ_URL leads to a primary, not to a replica.")
    if state.age_s is None:
        return ReadSource("replica", None, "From the read replica, which does not say how old its data is.")
    if state.age_s < NEW_DATA_AGE_S:
        return ReadSource("replica", state.age_s, "From the read replica, up to date.")
    return ReadSource("replica", state.age_s, f"From the read replica, {state.age_s:.0f} s behind.")
