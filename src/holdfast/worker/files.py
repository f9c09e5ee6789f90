"""Store and open the files of running tasks, and delete files that are no longer needed.

A file is recorded before and after its upload, each time under the lease. The engine alone decides its fate:
the file becomes visible when the task succeeds and is swept otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from holdfast import telemetry
from holdfast.definitions.context_types import ArtifactOptions, Content, FileReader
from holdfast.definitions.validation import parse_duration
from holdfast.engine import artifacts
from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease
from holdfast.errors import (
    HoldfastError,
    InvalidError,
    NotFoundError,
    SettingsError,
    StorageError,
)
from holdfast.model import Artifact
from holdfast.storage import ObjectStore, open_store
from holdfast.storage.content import (
    ContentReader,
    VerifiedFileReader,
    discard_object,
    merge_file_metadata,
    upload_content,
)
from holdfast.storage.file_names import check_file_name, resolve_content_type
from holdfast.worker.steps import add_saved_file

_log = logging.getLogger("holdfast.worker")


class TaskFiles:
    """Stores and opens the files of a worker's tasks, and deletes files that are not needed.

    The object store is opened when the first task needs it.
    """

    def __init__(self, database: Database, store: ObjectStore | None = None) -> None:
        self._database = database
        self._store = store

    @property
    def store(self) -> ObjectStore:
        if self._store is None:
            self._store = open_store(self._database.settings)
        return self._store

    async def save_file(
        self,
        lease: Lease,
        name: str,
        content: Content,
        content_type: str | None,
        options: ArtifactOptions,
    ) -> Artifact:
        store, reader = self.store, ContentReader(content)
        ttl = None if options.get("ttl") is None else parse_duration(options.get("ttl"), "ttl")
        content_type = resolve_content_type(check_file_name(name), content_type)
        if ttl is not None and ttl <= timedelta(0):
            raise InvalidError(f"ttl must be positive, got {ttl}.", field="ttl")
        file = {
            "name": name,
            "kind": options.get("kind", "file"),
            "content_type": content_type,
            "size": reader.size,
            "ttl_s": ttl.total_seconds() if ttl else None,
        }
        async with self._database.connection() as connection:
            staged = await artifacts.stage_artifact(connection, lease, file)
        reader.max_bytes = staged.max_bytes
        await upload_content(store, staged.key, reader, name=name, content_type=content_type)
        try:
            async with self._database.connection() as connection:
                recorded = await artifacts.record_artifact_upload(
                    connection,
                    staged.id,
                    lease,
                    size=reader.byte_count,
                    sha256=reader.sha256,
                    meta=merge_file_metadata(reader.media_metadata, options.get("meta")),
                )
        except HoldfastError as error:
            if error.sqlstate:  # the engine refused it; after any other error it may have been recorded
                await discard_object(store, staged.key)
            raise
        add_saved_file(recorded.id)
        return recorded

    @asynccontextmanager
    async def open_file(self, lease: Lease, artifact: Artifact | str) -> AsyncGenerator[FileReader]:
        if isinstance(artifact, str):
            async with self._database.connection() as connection:
                named = await artifacts.find_artifact_by_name(connection, lease, artifact)
            if named is None:
                raise NotFoundError(f"This job has no file {artifact!r}.", field="name")
            artifact = named
        async with self.store.open(artifact.key) as chunks:
            yield VerifiedFileReader(chunks, artifact)

    async def try_sweep_files(self) -> None:
        """Delete files that are no longer needed. If the store fails, the next call tries again."""
        try:
            await self.sweep_files()
        except (StorageError, SettingsError) as error:
            _log.warning("files could not be swept: %s", error)

    async def sweep_files(self) -> artifacts.ArtifactSweepResult:
        """Delete expired files and files of attempts that did not succeed."""
        swept = await artifacts.sweep_artifacts(self._database, self._delete_objects)
        if swept.deleted:
            telemetry.emit("files.swept", deleted=swept.deleted, expired=swept.expired, lost=swept.lost)
        return swept

    async def _delete_objects(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)
