"""Sessions of users on the pages of systems: a cookie with 256 random bits, and a row with its hash.

A session that is valid is not looked up again for one second, so a session that was ended works for at most
one second more on other processes. Its hash depends on `jwt_secret`, if there is one: a new secret ends all
sessions, as it ends all tokens.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from typing import Any, Final

from holdfast.engine import user_sessions
from holdfast.engine.access import hash_secret, hash_secret_with_key
from holdfast.engine.connection import Connection, Database
from holdfast.engine.user_sessions import NewUserSession, StoredUserSession
from holdfast.settings import Settings

USER_SESSION_COOKIE: Final = "holdfast_user"
CACHE_LIFETIME_S: Final = 1.0
MAX_CACHED_SESSIONS: Final = 1000
MAX_COOKIE_CHARS: Final = 200


class UserSessionStore:
    """Starts, finds and ends the sessions of users, with a cache of one second."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._jwt_secret = settings.jwt_secret
        self._cache: OrderedDict[bytes, tuple[float, StoredUserSession]] = OrderedDict()

    async def start_session(
        self, connection: Connection, claims: dict[str, Any], *, address: str | None, user_agent: str | None
    ) -> str:
        """Start a session with the claims of a token and return its cookie."""
        cookie = secrets.token_urlsafe(32)
        session = NewUserSession(
            digest=self._hash_cookie(cookie),
            owner=claims["sub"],
            claims=claims,
            address=address,
            user_agent=None if user_agent is None else user_agent.replace("\0", ""),
        )
        await user_sessions.start_user_session(connection, session)
        return cookie

    async def find_session(self, cookie: str | None) -> StoredUserSession | None:
        """Return the session of a cookie, or None if there is none or it has ended."""
        if not cookie or len(cookie) > MAX_COOKIE_CHARS:
            return None
        digest, now = self._hash_cookie(cookie), time.monotonic()
        checked_at, cached = self._cache.get(digest, (float("-inf"), None))
        if cached is not None and now - checked_at < CACHE_LIFETIME_S:
            return cached
        async with self._database.connection() as connection:
            session = await user_sessions.find_user_session(connection, [digest])
        self._cache.pop(digest, None)
        if session is not None:
            self._cache[digest] = (now, session)
            while len(self._cache) > MAX_CACHED_SESSIONS:
                self._cache.popitem(last=False)
        return session

    async def end_session(self, connection: Connection, session: StoredUserSession) -> None:
        """End a session. This process does not accept its cookie any more."""
        await user_sessions.end_user_session(connection, session.id)
        for digest in [digest for digest, (_, cached) in self._cache.items() if cached.id == session.id]:
            del self._cache[digest]

    def _hash_cookie(self, cookie: str) -> bytes:
        if self._jwt_secret is None:
            return hash_secret(cookie)
        return hash_secret_with_key(cookie, self._jwt_secret)
