"""Verify service keys, with a short-lived cache.

A key is `hf_`, eight letters that may be shown, `_` and 256 random bits. The database stores the SHA-256 of
the key. A verified key is cached for one second, so a revoked key works for at most one second more.
"""

from __future__ import annotations

import hmac
import time
from datetime import UTC, datetime

from holdfast.engine import access
from holdfast.engine.access import SERVICE_KEY_PREFIX, ServiceKey, hash_secret
from holdfast.engine.connection import Database
from holdfast.settings import Settings

SERVICE_KEY_CACHE_LIFETIME_S = 1.0
REVOCATION_CHECK_INTERVAL_S = 5.0
MAX_CACHED_SERVICE_KEYS = 1000
MAX_SERVICE_KEY_CHARS = 200


class ServiceKeyVerifier:
    """Verifier of service keys, with a cache."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._configured_key = settings.service_key
        self._invalid_prefixes: frozenset[str] = frozenset()
        self._checked_at = float("-inf")
        self._cache: dict[bytes, tuple[float, ServiceKey]] = {}

    def is_configured_key(self, credential: str) -> bool:
        """Return whether the credential is the key from the settings, which has all scopes."""
        return self._configured_key is not None and hmac.compare_digest(
            credential.encode("utf-8", "surrogatepass"), self._configured_key.reveal().encode()
        )

    async def is_key_active(self, prefix: str) -> bool:
        """Return whether the key with this prefix is neither revoked nor expired.

        All open streams share one query every few seconds.
        """
        if time.monotonic() - self._checked_at > REVOCATION_CHECK_INTERVAL_S:
            self._checked_at = time.monotonic()
            async with self._database.connection() as connection:
                keys = await access.list_service_keys(connection)
            now = datetime.now(UTC)
            self._invalid_prefixes = frozenset(
                key.prefix
                for key in keys
                if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now)
            )
        return prefix not in self._invalid_prefixes

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
        async with self._database.connection() as connection:
            key = await access.verify_service_key(connection, key_hash)
        if key is not None:
            if len(self._cache) >= MAX_CACHED_SERVICE_KEYS:
                self._cache.clear()
            self._cache[key_hash] = (now, key)
        return key
