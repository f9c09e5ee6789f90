"""Files of running tasks: `ctx.save`, `ctx.open`, and the sweep.

A file is recorded before and after its upload, each time under the lease. What becomes of it is decided by
the engine alone: visible with the task's success, swept without it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

from holdfast import telemetry
from holdfast.definitions.context import Content, Reading
from holdfast.engine import artifacts
from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease
from holdfast.errors import (
    HoldfastError,
    InvalidError,
    NotFoundError,
    RefusedError,
    SettingsError,
    StorageError,
)
from holdfast.model import Artifact
from holdfast.storage import Store, open_store
from holdfast.storage.contents import Checked, Reader, discard, merged, upload
from holdfast.storage.names import check_name, type_of
from holdfast.worker.context import Context
from holdfast.worker.steps import saved

_log = logging.getLogger("holdfast.worker")


class Files:
    """One for all tasks of a worker. The store is opened when the first task needs it."""

    def __init__(self, database: Database, store: Store | None = None) -> None:
        self._database = database
        self._store = store

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = open_store(self._database.settings)
        return self._store

    async def save(
        self,
        context: Context,
        name: str,
        content: Content,
        type: str | None,  # noqa: A002
        *,
        kind: str,
        ttl: timedelta | None,
        meta: dict[str, Any] | None,
    ) -> Artifact:
        lease, store, reader = _lease(context), self.store, Reader(content)
        content_type = type_of(check_name(name), type)
        if ttl is not None and ttl <= timedelta(0):
            raise InvalidError(f"ttl must be positive, got {ttl}.", field="ttl")
        file = {
            "name": name,
            "kind": kind,
            "content_type": content_type,
            "size": reader.size,
            "ttl_s": ttl.total_seconds() if ttl else None,
        }
        async with self._database.connection() as connection:
            staged = await artifacts.stage(connection, lease, file)
        reader.most = staged.most_bytes
        await upload(store, staged.key, reader, name=name, content_type=content_type)
        try:
            async with self._database.connection() as connection:
                recorded = await artifacts.record(
                    connection,
                    staged.id,
                    lease,
                    size=reader.count,
                    sha256=reader.sha256,
                    meta=merged(reader.facts, meta),
                )
        except HoldfastError as problem:
            if problem.sqlstate:  # the engine has said no; anything else may have been recorded
                await discard(store, staged.key)
            raise
        saved(recorded.id)
        return recorded

    def open(self, context: Context, artifact: Artifact | str) -> AbstractAsyncContextManager[Reading]:
        return self._open(context, artifact)

    @asynccontextmanager
    async def _open(self, context: Context, artifact: Artifact | str) -> AsyncGenerator[Reading]:
        if isinstance(artifact, str):
            async with self._database.connection() as connection:
                found = await artifacts.find_artifact(connection, _lease(context), artifact)
            if found is None:
                raise NotFoundError(f"This job has no file {artifact!r}.", field="name")
            artifact = found
        async with self.store.open(artifact.key) as pieces:
            yield Checked(pieces, artifact)

    async def keep_house(self) -> None:
        """Sweep, and go on if the store does not let us: the next round tries again."""
        try:
            await self.sweep()
        except (StorageError, SettingsError) as problem:
            _log.warning("files could not be swept: %s", problem)

    async def sweep(self) -> artifacts.Swept:
        """Delete what nobody wants any more."""
        swept = await artifacts.sweep(self._database, self._delete)
        if swept.deleted:
            telemetry.emit("files.swept", deleted=swept.deleted, expired=swept.expired, lost=swept.lost)
        return swept

    async def _delete(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)


def _lease(context: Context) -> Lease:
    if context.lease is None:
        raise RefusedError("Files belong to a running task.", fix="Call it while the worker runs the task.")
    return context.lease
