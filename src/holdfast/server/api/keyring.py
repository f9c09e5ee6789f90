"""Whose service key this is.

A key is `hf_` + eight letters that may be shown + `_` + 256 random bits. The database has its SHA-256 and
answers for it; the answer is believed for one second, which is how long a revoked key can live on.
"""

from __future__ import annotations

import hmac
import time
from datetime import UTC, datetime

from holdfast.engine import access
from holdfast.engine.access import ALL, KEY_PREFIX, SCOPES, ServiceKey, digest, new_key
from holdfast.engine.connection import Database
from holdfast.settings import Settings

__all__ = ["ALL", "SCOPES", "KeyRing", "digest", "new_key"]

BELIEVED_SECONDS = 1.0
LOOK_SECONDS = 5.0
MOST = 1000


class KeyRing:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._fixed = settings.service_key
        self._dead: frozenset[str] = frozenset()
        self._looked_at = float("-inf")
        self._believed: dict[bytes, tuple[float, ServiceKey]] = {}

    def is_fixed(self, given: str) -> bool:
        """Whether it is the key in the settings, which opens everything."""
        return self._fixed is not None and hmac.compare_digest(
            given.encode("utf-8", "surrogatepass"), self._fixed.reveal().encode()
        )

    async def alive(self, prefix: str) -> bool:
        """Whether a key that was let in once still is one; asked every few seconds for all that watch."""
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._looked_at = time.monotonic()
            async with self._database.connection() as connection:
                keys = await access.list_keys(connection)
            now = datetime.now(UTC)
            self._dead = frozenset(
                key.prefix
                for key in keys
                if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now)
            )
        return prefix not in self._dead

    async def find(self, given: str) -> ServiceKey | None:
        if not given.startswith(KEY_PREFIX) or len(given) > 200:
            return None
        hashed = digest(given)
        now = time.monotonic()
        believed = self._believed.get(hashed)
        if believed is not None and now - believed[0] < BELIEVED_SECONDS:
            return believed[1]
        self._believed.pop(hashed, None)
        async with self._database.connection() as connection:
            found = await access.check_key(connection, hashed)
        if found is not None:
            if len(self._believed) >= MOST:
                self._believed.clear()
            self._believed[hashed] = (now, found)
        return found
