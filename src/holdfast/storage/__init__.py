"""Where the bytes of files are kept: one protocol, and back ends for a folder, S3, GCS, Azure, memory.

A store knows keys and bytes, and nothing of jobs. `put` is atomic: an object is there whole or not at all.
`put` and `open` stream with memory that does not grow with the object. `delete` of what is not there is done.
Errors are `StorageError` (away, refused, full), and `NotFoundError` for a key that is not there.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import HoldfastError, SettingsError
from holdfast.settings import Settings

__all__ = ["Place", "Store", "Stored", "open_store", "place_of"]

PART_BYTES = 8 * 1024 * 1024  # of a multipart upload; ten thousand parts are the most S3 takes
CHUNK_BYTES = 256 * 1024  # of what is read


@dataclass(frozen=True)
class Stored:
    key: str
    size: int
    modified_at: datetime


class Store(Protocol):
    @property
    def signs(self) -> bool:
        """Whether `sign` makes links that the store itself serves."""
        ...

    async def put(
        self,
        key: str,
        content: AsyncIterable[bytes],
        *,
        content_type: str = "application/octet-stream",
        disposition: str | None = None,
    ) -> int:
        """Store what comes, and answer how many bytes it was. Nothing is there when this raises."""
        ...

    def open(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes from `start` up to but not including `end`, in pieces."""
        ...

    async def find(self, key: str) -> Stored | None: ...
    async def delete(self, keys: Sequence[str]) -> None: ...
    def list(self, prefix: str = "") -> AsyncIterator[Sequence[Stored]]: ...
    async def sign(self, key: str, expires: timedelta) -> str:
        """A link with which anybody may fetch the object for that long."""
        ...


@dataclass(frozen=True)
class Place:
    """A storage address, read. Options are those of the library, such as endpoint and region."""

    scheme: str
    bucket: str
    prefix: str
    options: dict[str, str]


_SCHEMES = {"file", "s3", "gs", "az", "memory"}
_PAIR = ("access_key_id", "secret_access_key")
_CREDENTIALS = {"az": ("account_name", "account_key")}


def place_of(settings: Settings) -> Place:
    if settings.storage_url is None:
        return Place("file", "", str((settings.home / "files").absolute()), {})
    text = settings.storage_url.reveal()
    if "://" not in text:
        return Place("file", "", str(Path(text).expanduser().absolute()), {})
    try:
        url = urlsplit(text)
        user, password = url.username, url.password
        host = url.netloc.rpartition("@")[2]
    except ValueError:
        raise _unreadable() from None
    if url.scheme not in _SCHEMES or (url.scheme in {"s3", "gs", "az"} and not host):
        raise _unreadable()
    options = dict(parse_qsl(url.query))
    if user and password:
        options |= dict(
            zip(_CREDENTIALS.get(url.scheme, _PAIR), (unquote(user), unquote(password)), strict=True)
        )
    path = unquote(url.path)
    return Place(url.scheme, host, path if url.scheme == "file" else path.strip("/"), options)


def _unreadable() -> SettingsError:
    return SettingsError(
        "storage_url cannot be read.",
        fix="Write a folder, or s3://bucket/prefix?endpoint=https://host&region=eu-west-1, gs://bucket, "
        "az://container; keys come from AWS_ACCESS_KEY_ID and the like, or as s3://key:secret@bucket.",
        field="storage_url",
    )


def open_store(settings: Settings) -> Store:
    """The store that the settings name. Connects to nothing yet."""
    place = place_of(settings)
    try:  # an extra: a worker that saves no files does without
        from holdfast.storage.objects import ObjectStorage  # noqa: PLC0415
    except ImportError as problem:
        raise HoldfastError(
            f"Files need a package that is not installed: {problem.name}.",
            fix="pip install 'holdfast[files]'",
        ) from problem
    return ObjectStorage.at(place)
