"""Object stores that hold the content of files: one protocol for folders, S3, GCS, Azure and memory.

A store knows keys and bytes; it knows nothing about jobs. `put` is atomic: an object exists completely or not
at all. `put` and `open` stream, so memory use does not grow with the size of the object. `delete` ignores
keys that do not exist. Stores raise `StorageError` (unavailable, access denied, full), and `NotFoundError`
for a key that does not exist.
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

__all__ = ["ObjectStore", "StorageLocation", "StoredObject", "open_store", "parse_storage_location"]

UPLOAD_PART_BYTES = 8 * 1024 * 1024  # S3 accepts at most 10,000 parts per upload
READ_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class StoredObject:
    """An object in a store, without its content."""

    key: str
    size: int
    modified_at: datetime


class ObjectStore(Protocol):
    """A store of objects (bytes with a key): a folder, S3, GCS, Azure or memory."""

    @property
    def can_sign_urls(self) -> bool:
        """Whether the store serves its objects over HTTP, so that `sign_url` works."""
        ...

    async def put(
        self,
        key: str,
        content: AsyncIterable[bytes],
        *,
        content_type: str = "application/octet-stream",
        disposition: str | None = None,
    ) -> int:
        """Store the content and return its size in bytes. If this raises, no object exists under `key`."""
        ...

    def open(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Read the bytes from `start` up to but not including `end`, in chunks."""
        ...

    async def find(self, key: str) -> StoredObject | None:
        """Return the object with this key, or None."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects with these keys. Keys that do not exist are ignored."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """List the objects below `prefix`, page by page."""
        ...

    async def sign_url(self, key: str, expires_in: timedelta) -> str:
        """Return a URL from which anybody can download the object until it expires."""
        ...


@dataclass(frozen=True)
class StorageLocation:
    """A parsed `storage_url`. `options` are passed to the storage library, such as endpoint and region."""

    scheme: str
    bucket: str
    prefix: str
    options: dict[str, str]


_STORAGE_URL_SCHEMES = {"file", "s3", "gs", "az", "memory"}
_CREDENTIAL_OPTIONS = ("access_key_id", "secret_access_key")
_CREDENTIAL_OPTIONS_BY_SCHEME = {"az": ("account_name", "account_key")}


def parse_storage_location(settings: Settings) -> StorageLocation:
    """Parse `storage_url`. Without one, the location is the folder `files` in the home folder."""
    if settings.storage_url is None:
        return StorageLocation("file", "", str((settings.home / "files").absolute()), {})
    text = settings.storage_url.reveal()
    if "://" not in text:
        return StorageLocation("file", "", str(Path(text).expanduser().absolute()), {})
    try:
        url = urlsplit(text)
        user, password = url.username, url.password
        host = url.netloc.rpartition("@")[2]
    except ValueError:
        raise _build_storage_url_error() from None
    if url.scheme not in _STORAGE_URL_SCHEMES or (url.scheme in {"s3", "gs", "az"} and not host):
        raise _build_storage_url_error()
    options = dict(parse_qsl(url.query))
    if user and password:
        names = _CREDENTIAL_OPTIONS_BY_SCHEME.get(url.scheme, _CREDENTIAL_OPTIONS)
        options |= dict(zip(names, (unquote(user), unquote(password)), strict=True))
    path = unquote(url.path)
    return StorageLocation(url.scheme, host, path if url.scheme == "file" else path.strip("/"), options)


def _build_storage_url_error() -> SettingsError:
    return SettingsError(
        "storage_url is not a valid storage URL.",
        fix="Use a folder, s3://bucket/prefix?endpoint=https://host&region=eu-west-1, gs://bucket or "
        "az://container. Pass keys as s3://key:secret@bucket or in AWS_ACCESS_KEY_ID and similar variables.",
        field="storage_url",
    )


def open_store(settings: Settings) -> ObjectStore:
    """Return the store that `storage_url` names. No connection is made before the first operation."""
    location = parse_storage_location(settings)
    try:  # an optional dependency: a worker that saves no files does not need it
        from holdfast.storage.obstore_backend import ObstoreBackend  # noqa: PLC0415
    except ImportError as error:
        raise HoldfastError(
            f"The package {error.name!r}, which file storage needs, is not installed.",
            fix="pip install 'holdfast[files]'",
        ) from error
    return ObstoreBackend.from_location(location)
