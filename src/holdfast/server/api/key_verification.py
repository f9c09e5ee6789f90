"""Verify service keys, with a short-lived cache.

A key is `hf_`, eight letters that may be shown, `_` and 256 random bits. The database stores the SHA-256 of
the key. A verified key is cached for one second, so a revoked key works for at most one second more.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence

from holdfast.engine import access
from holdfast.engine.access import SERVICE_KEY_PREFIX, ServiceKey, hash_secret, hash_secret_with_key
from holdfast.engine.connection import Database
from holdfast.errors import DatabaseError
from holdfast.settings import Settings

SERVICE_KEY_CACHE_LIFETIME_S = 1.0
MAX_CACHED_SERVICE_KEYS = 1000
MAX_SERVICE_KEY_CHARS = 200


class ServiceKeyVerifier:
    """Verifier of service keys, with a cache.

    `other_shards` are asked if the database does not have the key or does not answer.
    """

    def __init__(self, database: Database, settings: Settings, other_shards: Sequence[Database] = ()) -> None:
        self._database = database
        self._other_shards = other_shards
        self._configured_key = settings.service_key
        self._cache: dict[bytes, tuple[float, ServiceKey]] = {}

    def is_configured_key(self, credential: str) -> bool:
        """Return whether the credential is the key from the settings, which has all scopes."""
        return self._configured_key is not None and hmac.compare_digest(
            credential.encode("utf-8", "surrogatepass"), self._configured_key.reveal().encode()
        )

    def hash_bound_secret(self, secret: str) -> list[bytes]:
        """Return the digests under which a session or ticket with this random secret may be stored.

        The second, if the settings have a service key, depends on that key. What was opened with the key of
        the settings is stored under it, and therefore ends when the key changes.
        """
        digests = [hash_secret(secret)]
        if self._configured_key is not None:
            digests.append(hash_secret_with_key(secret, self._configured_key))
        return digests

    async def find_service_key(self, credential: str) -> ServiceKey | None:
        """Return the service key of a credential, or None if the credential is not a valid service key."""
        if not credential.startswith(SERVICE_KEY_PREFIX) or len(credential) > MAX_SERVICE_KEY_CHARS:
            return None
        key_hash = hash_secret(credential)
        now = time.monotonic()
        cached = self._cache.get(key_hash)
        if cached is not None and now - cached[0] < SERVICE_KEY_CACHE_LIFETIME_S:
            return cached[1]
        self._cache.pop(key_hash, None)
        key = await self._read_service_key(key_hash)
        if key is not None:
            if len(self._cache) >= MAX_CACHED_SERVICE_KEYS:
                self._cache.clear()
            self._cache[key_hash] = (now, key)
        return key

    async def _read_service_key(self, key_hash: bytes) -> ServiceKey | None:
        failure: DatabaseError | None = None
        for database in (self._database, *self._other_shards):
            try:
                async with database.connection() as connection:
                    key = await access.verify_service_key(connection, key_hash)
            except DatabaseError as error:
                failure = failure or error
                continue
            if key is not None:
                return key
        if failure is not None:
            raise failure
        return None
