"""Files of jobs, for applications: `client.files`. Tasks save theirs with `ctx.save`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack
from urllib.parse import quote
from uuid import UUID

from holdfast.client.ids import uuid_of
from holdfast.definitions.context import Reading
from holdfast.engine import artifacts
from holdfast.engine.artifacts import Staged, Swept
from holdfast.engine.connection import Connection, Database
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.model import Artifact
from holdfast.storage import Store, open_store
from holdfast.storage.contents import Checked, Content, Reader, discard, merged, upload
from holdfast.storage.names import check_name, type_of
from holdfast.storage.signing import Signer, check_span

if TYPE_CHECKING:
    from holdfast.client import Client

T = TypeVar("T")

TOUCH_SECONDS = 60.0
OLD_ENOUGH = timedelta(days=1)  # an object that no row speaks of may be one that is just being put there


class PutSay(TypedDict, total=False):
    """A file belongs to a job, or to an owner; the owner of a job's file is the job's."""

    job: UUID | str | None
    owner: str | None
    kind: str
    ttl: timedelta | None
    meta: dict[str, Any] | None


@dataclass(eq=False)
class Files:
    client: Client
    _store: Store | None = None
    _signer: Signer | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = open_store(self.client.settings)
        return self._store

    async def list(
        self,
        *,
        job: UUID | str | None = None,
        batch: UUID | str | None = None,
        owner: str | None = None,
        kind: str | None = None,
        name: str | None = None,
    ) -> Sequence[Artifact]:
        """All visible files that fit, oldest first."""
        where = {
            "job": uuid_of(job, "job") if job else None,
            "batch": uuid_of(batch, "batch") if batch else None,
            "owner": owner,
            "kind": kind,
            "name": name,
        }
        found: list[Artifact] = []
        async with self._connection() as connection:
            while True:
                after = found[-1].id if found else None
                page = await artifacts.list_artifacts(connection, where, after=after, limit=1000)
                found += page
                if len(page) < 1000:
                    return found

    async def get(self, file: UUID | str) -> Artifact:
        """Raises NotFoundError, or GoneError when it was there and is not any more."""
        async with self._connection() as connection:
            return await artifacts.get_artifact(connection, uuid_of(file, "file"))

    @asynccontextmanager
    async def open(self, file: Artifact | UUID | str) -> AsyncGenerator[Reading]:
        """Read a file: `async for piece in reading`, or `await reading.read()`. Its hash is checked."""
        found = file if isinstance(file, Artifact) else await self.get(file)
        async with self.store.open(found.key) as pieces:
            yield Checked(pieces, found)

    async def put(
        self,
        name: str,
        content: Content,
        type: str | None = None,  # noqa: A002
        **say: Unpack[PutSay],
    ) -> Artifact:
        """Store a file that no task makes. It is visible when this returns."""
        store, reader = self.store, Reader(content)
        content_type = type_of(check_name(name), type)
        job, ttl = say.get("job"), say.get("ttl")
        file = {
            "name": name,
            "kind": say.get("kind", "file"),
            "content_type": content_type,
            "size": reader.size,
            "ttl_s": ttl.total_seconds() if ttl else None,
            "job": uuid_of(job, "job") if job else None,
            "owner": say.get("owner"),
        }
        async with self._connection() as connection:
            staged = await artifacts.stage_file(connection, file)
        reader.most = staged.most_bytes
        await upload(self._touching(store, staged), staged.key, reader, name=name, content_type=content_type)
        try:
            async with self._connection() as connection:
                return await artifacts.record(
                    connection,
                    staged.id,
                    None,
                    size=reader.count,
                    sha256=reader.sha256,
                    meta=merged(reader.facts, say.get("meta")),
                )
        except HoldfastError as problem:
            if problem.sqlstate:
                await discard(store, staged.key)
            raise

    def _touching(self, store: Store, staged: Staged) -> Store:
        async def touch() -> None:
            async with self._connection() as connection:
                await artifacts.touch_file(connection, staged.id)

        return _Touching(store, touch)

    async def delete(self, file: UUID | str) -> None:
        """From now on nobody sees it; its bytes go with the next sweep."""
        async with self._connection() as connection:
            if not await artifacts.delete_artifact(connection, uuid_of(file, "file")):
                raise NotFoundError(f"There is no visible file {file}.", field="id")

    async def sign(
        self, file: Artifact | UUID | str, expires: timedelta = timedelta(hours=1), *, inline: bool = False
    ) -> str:
        """A link for whoever has it, for 5 minutes to an hour.

        An object store makes a full address. For a local folder it is a path, /files/..., on the host where
        `holdfast api` runs; `inline` (shown by the browser, if its type is harmless) always goes there.
        """
        found = file if isinstance(file, Artifact) else await self.get(file)
        left = found.expires_at - datetime.now(UTC) if found.expires_at else expires
        if self.store.signs and not inline:
            return await self.store.sign(found.key, max(min(check_span(expires), left), timedelta(seconds=1)))
        if self._signer is None:
            self._signer = Signer.of(self.client.settings)
        return "/files/" + quote(self._signer.sign(found, expires, inline=inline))

    async def remake(self, file: UUID | str) -> UUID:
        """Run the task anew that made the file; answers with its job."""
        async with self._connection() as connection:
            return UUID((await artifacts.remake_artifact(connection, uuid_of(file, "file")))["job_id"])

    async def usage(self, owner: str) -> dict[str, Any]:
        """{bytes: {used, limit}, files: {used, limit}, operations: {used, limit}} of an owner."""
        async with self._connection() as connection:
            return await artifacts.get_usage(connection, owner)

    async def sweep(self) -> Swept:
        """Delete what has expired, was deleted, replaced or lost. Workers do this by themselves."""
        return await artifacts.sweep(await self.client.open(), self._delete)

    async def _delete(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)

    async def strangers(self, *, older: timedelta = OLD_ENOUGH) -> AsyncIterator[Sequence[str]]:
        """Keys of objects that no row speaks of, page by page: looks at the whole store."""
        before = datetime.now(UTC) - older
        async for page in self.store.list():
            keys = [stored.key for stored in page if stored.modified_at < before]
            async with self._connection() as connection:
                unknown = await artifacts.unknown_keys(connection, keys)
            if unknown:
                yield unknown

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Connection]:
        database: Database = await self.client.open()
        async with database.connection() as connection:
            yield connection


class _Touching:
    """A store that says, now and then, that the upload goes on."""

    def __init__(self, store: Store, touch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._store = store
        self._touch = touch
        self.signs = store.signs
        self.open, self.find, self.delete = store.open, store.find, store.delete
        self.list, self.sign = store.list, store.sign

    async def put(
        self,
        key: str,
        content: Any,
        *,
        content_type: str = "application/octet-stream",
        disposition: str | None = None,
    ) -> int:
        return await self._store.put(
            key, self._pieces(content), content_type=content_type, disposition=disposition
        )

    async def _pieces(self, content: Any) -> AsyncGenerator[bytes]:
        touched = time.monotonic()
        async with contextlib.aclosing(aiter(content)) as pieces:
            async for piece in pieces:
                if time.monotonic() - touched > TOUCH_SECONDS:
                    touched = time.monotonic()
                    await self._touch()
                yield piece


class Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class BlockingFiles:
    """The same for code without an event loop: `client.blocking.files`."""

    def __init__(self, files: Files, run: Run) -> None:
        self._files = files
        self._run = run

    def list(self, **where: Any) -> Sequence[Artifact]:
        return self._run(self._files.list(**where))

    def get(self, file: UUID | str) -> Artifact:
        return self._run(self._files.get(file))

    def read(self, file: Artifact | UUID | str) -> bytes:
        async def read() -> bytes:
            async with self._files.open(file) as reading:
                return await reading.read()

        return self._run(read())

    def put(self, name: str, content: Content, type: str | None = None, **say: Unpack[PutSay]) -> Artifact:  # noqa: A002
        return self._run(self._files.put(name, content, type, **say))

    def delete(self, file: UUID | str) -> None:
        self._run(self._files.delete(file))

    def sign(self, file: Artifact | UUID | str, expires: timedelta = timedelta(hours=1)) -> str:
        return self._run(self._files.sign(file, expires))
