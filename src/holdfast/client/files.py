"""`client.files`: stored files for applications. Tasks save their files with `ctx.save`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, Unpack
from urllib.parse import quote
from uuid import UUID

from holdfast.client.connections import ClientConnections
from holdfast.definitions.context_types import FileReader
from holdfast.definitions.ids import parse_id
from holdfast.definitions.validation import check_option_names, parse_duration
from holdfast.engine import artifacts, quotas
from holdfast.engine.artifacts import ArtifactSweepResult, StagedArtifact
from holdfast.engine.connection import Connection
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.model import Artifact
from holdfast.storage import ObjectStore, open_store
from holdfast.storage.content import (
    Content,
    ContentReader,
    VerifiedFileReader,
    discard_object,
    merge_file_metadata,
    upload_content,
)
from holdfast.storage.file_names import check_file_name, resolve_content_type
from holdfast.storage.public_links import build_public_link
from holdfast.storage.signed_links import FileLinkSigner, check_link_lifetime

UPLOAD_TOUCH_INTERVAL_S = 60.0
FILE_PAGE_ROWS = 1000
MIN_ORPHAN_AGE = timedelta(days=1)  # a younger object without a row may be an upload that goes on


class FileOptions(TypedDict, total=False):
    """The keyword arguments of `client.files.put`: the owner, job and lifetime of a file.

    job: the job that the file belongs to. The owner of the job owns the file.
    owner: the owner of a file without a job.
    kind: what the file is for. The default is `file`.
    ttl: how long the file is kept. The default is for ever.
    meta: facts about the file, stored as JSON.

    >>> from datetime import timedelta
    >>> from holdfast import FileOptions
    >>> upload: FileOptions = {"owner": "ann", "ttl": timedelta(days=7)}
    """

    job: UUID | str | None
    owner: str | None
    kind: str
    ttl: timedelta | float | None
    meta: dict[str, Any] | None


class Files:
    """`client.files`: store, find, read and delete files."""

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections
        self._store: ObjectStore | None = None
        self._signer: FileLinkSigner | None = None

    @property
    def store(self) -> ObjectStore:
        """The object store that holds the content of the files."""
        if self._store is None:
            self._store = open_store(self._connections.settings)
        return self._store

    @store.setter
    def store(self, store: ObjectStore) -> None:
        self._store = store

    async def list(
        self,
        *,
        job: UUID | str | None = None,
        batch: UUID | str | None = None,
        owner: str | None = None,
        kind: str | None = None,
        name: str | None = None,
    ) -> Sequence[Artifact]:
        """Return all visible files that match the filters, oldest first.

        A client with shards asks the shard of the job or batch, else all of them.
        """
        where = {
            "job": parse_id(job, "job") if job else None,
            "batch": parse_id(batch, "batch") if batch else None,
            "owner": owner,
            "kind": kind,
            "name": name,
        }

        async def list_all(connection: Connection) -> Sequence[Artifact]:
            files: list[Artifact] = []
            while True:
                after = files[-1].id if files else None
                page = await artifacts.list_artifacts(connection, where, after=after, limit=FILE_PAGE_ROWS)
                files += page
                if len(page) < FILE_PAGE_ROWS:
                    return files

        subject = where["job"] or where["batch"]
        connections = await self._connections.for_id(subject) if subject else self._connections
        pages = await connections.run_on_all(list_all)
        return sorted((file for page in pages for file in page), key=lambda file: file.id)

    async def get(self, file: UUID | str) -> Artifact:
        """Return a file's metadata.

        Raise NotFoundError if the file does not exist, and GoneError if it has expired or was deleted.
        """
        async with (await self._connections.for_id(parse_id(file, "file"))).connection() as connection:
            return await artifacts.get_artifact(connection, parse_id(file, "file"))

    @asynccontextmanager
    async def open(self, file: Artifact | UUID | str) -> AsyncGenerator[FileReader]:
        """Open a file. Read its content in chunks with `async for`, or at once with `read()`.

        The content is compared with the stored hash.
        """
        artifact = file if isinstance(file, Artifact) else await self.get(file)
        async with self.store.open(artifact.key) as chunks:
            yield VerifiedFileReader(chunks, artifact)

    async def read(self, file: Artifact | UUID | str) -> bytes:
        """Return the whole content of a file."""
        async with self.open(file) as reader:
            return await reader.read()

    async def put(
        self,
        name: str,
        content: Content,
        type: str | None = None,  # noqa: A002
        **options: Unpack[FileOptions],
    ) -> Artifact:
        """Store a file. The file is visible when this method returns.

        `content` is bytes, a path, a file opened with "rb", or an async iterator of bytes. `type` is the
        content type; the default follows from the name.
        """
        check_option_names(options, FileOptions.__annotations__, "files.put")
        store, reader = self.store, ContentReader(content)
        content_type = resolve_content_type(check_file_name(name), type)
        request: dict[str, Any] = _build_file_request(options) | {
            "name": name,
            "content_type": content_type,
            "size": reader.size,
        }
        connections = await (
            self._connections.for_id(request["job"])
            if request["job"]
            else self._connections.for_submit({"owner": request["owner"]})
        )
        async with connections.connection() as connection:
            staged = await artifacts.stage_artifact_without_task(connection, request)
        reader.max_bytes = staged.max_bytes
        await upload_content(
            _touch_while_uploading(connections, store, staged),
            staged.key,
            reader,
            name=name,
            content_type=content_type,
        )
        try:
            async with connections.connection() as connection:
                return await artifacts.record_artifact_upload(
                    connection,
                    staged.id,
                    None,
                    size=reader.byte_count,
                    sha256=reader.sha256,
                    meta=merge_file_metadata(reader.media_metadata, options.get("meta")),
                )
        except HoldfastError as error:
            if error.sqlstate:  # the database refused the row, so nothing refers to the object
                await discard_object(store, staged.key)
            raise

    async def delete(self, file: UUID | str) -> None:
        """Delete a file. The file is hidden at once, and the next sweep deletes its content."""
        async with (await self._connections.for_id(parse_id(file, "file"))).connection() as connection:
            if not await artifacts.delete_artifact(connection, parse_id(file, "file")):
                raise NotFoundError(f"File {file} does not exist or is not visible.", field="id")

    async def create_download_link(
        self,
        file: Artifact | UUID | str,
        expires: timedelta | float = timedelta(hours=1),
        *,
        inline: bool = False,
    ) -> str:
        """Return a signed download link that is valid for 5 minutes to an hour.

        An object store returns a full URL. For a local folder the link leads to the API: it starts with the
        setting `public_url`, or is a path, /files/..., without it. With `inline` it always leads to the API,
        and browsers show files of safe types.
        """
        lifetime = parse_duration(expires, "expires")
        artifact = file if isinstance(file, Artifact) else await self.get(file)
        remaining = artifact.expires_at - datetime.now(UTC) if artifact.expires_at else lifetime
        if self.store.can_sign_urls and not inline:
            return await self.store.sign_url(
                artifact.key, max(min(check_link_lifetime(lifetime), remaining), timedelta(seconds=1))
            )
        if self._signer is None:
            self._signer = FileLinkSigner.from_settings(self._connections.settings)
        token = quote(self._signer.create_token(artifact, lifetime, inline=inline))
        return build_public_link(self._connections.settings, f"/files/{token}")

    async def regenerate(self, file: UUID | str) -> UUID:
        """Run the task that saved the file again, and return the id of its job."""
        async with (await self._connections.for_id(parse_id(file, "file"))).connection() as connection:
            row = await artifacts.regenerate_artifact(connection, parse_id(file, "file"))
            return UUID(row["job_id"])

    async def usage(self, owner: str) -> dict[str, Any]:
        """Return the quotas of an owner: `used` and `limit` of `bytes`, `files` and `operations`.

        With shards, `used` is the sum over all of them. Each shard allows `limit` by itself.
        """
        first, *others = await self._connections.run_on_all(
            lambda connection: quotas.get_owner_usage(connection, owner)
        )
        for name, quota in first.items():
            if isinstance(quota, dict) and "used" in quota:
                quota["used"] += sum(other[name]["used"] for other in others)
        return first

    async def sweep(self) -> ArtifactSweepResult:
        """Delete the content of expired, deleted, replaced and lost files. Workers do this regularly."""
        results = [
            await artifacts.sweep_artifacts(await connections.open_database(), self._delete_objects)
            for connections in await self._connections.open_all()
        ]
        return _add_up_sweeps(results)

    async def _delete_objects(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)

    async def orphaned_objects(
        self, *, older: timedelta | float = MIN_ORPHAN_AGE
    ) -> AsyncIterator[Sequence[str]]:
        """Yield lists of keys of stored objects that no database row refers to.

        This lists the whole store.
        """
        before = datetime.now(UTC) - parse_duration(older, "older")
        async for page in self.store.list():
            keys = [stored.key for stored in page if stored.modified_at < before]
            # Shards have one store: an object is orphaned if none of them knows it.
            for connections in await self._connections.open_all():
                async with connections.connection() as connection:
                    keys = list(await artifacts.find_orphaned_object_keys(connection, keys))
            if keys:
                yield keys


def _add_up_sweeps(results: Sequence[ArtifactSweepResult]) -> ArtifactSweepResult:
    names = ArtifactSweepResult.__struct_fields__
    return ArtifactSweepResult(**{name: sum(getattr(each, name) for each in results) for name in names})


def _touch_while_uploading(
    connections: ClientConnections, store: ObjectStore, staged: StagedArtifact
) -> ObjectStore:
    async def touch() -> None:
        async with connections.connection() as connection:
            await artifacts.touch_artifact_upload(connection, staged.id)

    return _UploadTouchingStore(store, touch)


def _build_file_request(options: FileOptions) -> dict[str, Any]:
    job, ttl = options.get("job"), options.get("ttl")
    return {
        "kind": options.get("kind", "file"),
        "ttl_s": parse_duration(ttl, "ttl").total_seconds() if ttl else None,
        "job": parse_id(job, "job") if job else None,
        "owner": options.get("owner"),
    }


class _UploadTouchingStore:
    """An object store that marks a running upload as active, so that no sweep deletes it."""

    def __init__(self, store: ObjectStore, touch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._store = store
        self._touch = touch
        self.can_sign_urls = store.can_sign_urls
        self.open, self.find, self.delete = store.open, store.find, store.delete
        self.list, self.sign_url = store.list, store.sign_url

    async def put(
        self,
        key: str,
        content: Any,
        *,
        content_type: str = "application/octet-stream",
        disposition: str | None = None,
    ) -> int:
        return await self._store.put(
            key, self._touch_between_chunks(content), content_type=content_type, disposition=disposition
        )

    async def _touch_between_chunks(self, content: Any) -> AsyncGenerator[bytes]:
        touched_at = time.monotonic()
        async with contextlib.aclosing(aiter(content)) as chunks:
            async for chunk in chunks:
                if time.monotonic() - touched_at > UPLOAD_TOUCH_INTERVAL_S:
                    touched_at = time.monotonic()
                    await self._touch()
                yield chunk
