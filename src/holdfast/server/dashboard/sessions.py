"""Sessions: who is signed in, and the token that every form of the dashboard carries.

The cookie of a session is 256 random bits that the server chose; no other cookie is ever accepted. The
database stores its hash with the user, the service key that opened the session, and when it ends. A session
that is valid is not looked up again for one second, so on every process a session that was ended, or whose
key was revoked, works for at most one second more.

The form token is derived from the cookie. A form on another site cannot know it, even where the browser would
send the cookie along.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast.engine import sessions
from holdfast.engine.connection import Connection
from holdfast.engine.sessions import LoginMethod, NewSession
from holdfast.errors import DatabaseError
from holdfast.server.api.services import AppServices
from holdfast.server.dashboard.roles import PERMISSIONS_BY_ROLE, DashboardUser
from holdfast.settings import Settings

SESSION_COOKIE = "holdfast_session"
FLASH_COOKIE = "holdfast_flash"
SESSION_LIFETIME_S = 12 * 3600
SESSION_CACHE_LIFETIME_S = 1.0
MAX_CACHED_SESSIONS = 1000
MAX_SESSION_COOKIE_CHARS = 200


@dataclass(frozen=True)
class DashboardSession:
    """A login session: the user, the form token, and the expiry time in seconds since the epoch.

    `id` is None if the host application identified the user. `is_verified` is False if the database could not
    be asked whether the session has ended. Such a session sees nothing but pages from before.
    """

    user: DashboardUser
    token: str
    expires: float
    id: UUID | None = None
    is_verified: bool = True


@dataclass(frozen=True)
class Login:
    """A successful login: the user, and how the user was identified."""

    user: DashboardUser
    method: LoginMethod
    key_prefix: str | None = None


class SessionStore:
    """Starts, finds and ends the sessions of the dashboard, with a cache of one second."""

    def __init__(self, services: AppServices) -> None:
        self._database = services.database
        self._key_verifier = services.key_verifier
        self._access_monitor = services.access_monitor
        self._cache: OrderedDict[bytes, tuple[float, DashboardSession]] = OrderedDict()

    async def start_session(
        self, connection: Connection, login: Login, *, address: str | None, user_agent: str | None
    ) -> tuple[UUID, str] | None:
        """Start a session and return its id and cookie, or None if the service key was just revoked."""
        cookie = secrets.token_urlsafe(32)
        digests = self._key_verifier.hash_bound_secret(cookie)
        session = NewSession(
            digest=digests[-1] if login.method == "settings_key" else digests[0],
            login=login.method,
            key_prefix=login.key_prefix,
            name=login.user.name,
            role=login.user.role,
            tenant=login.user.tenant,
            address=address,
            user_agent=None if user_agent is None else user_agent.replace("\0", ""),
        )
        lifetime = timedelta(seconds=SESSION_LIFETIME_S)
        session_id = await sessions.start_session(connection, session, lifetime)
        return None if session_id is None else (session_id, cookie)

    async def find_session(
        self, cookie: str | None, *, allow_unverified: bool = False
    ) -> DashboardSession | None:
        """Return the session of a cookie, or None if there is none or it has ended.

        While the database does not respond, `allow_unverified` returns a session that was valid before.
        """
        if not cookie or len(cookie) > MAX_SESSION_COOKIE_CHARS:
            return None
        digests = self._key_verifier.hash_bound_secret(cookie)
        checked_at, cached = self._cache.get(digests[0], (float("-inf"), None))
        now = time.monotonic()
        if cached is not None and now - checked_at < SESSION_CACHE_LIFETIME_S:
            return cached
        try:
            async with self._database.connection() as connection:
                stored = await sessions.find_session(connection, digests)
        except DatabaseError:
            if cached is None or not allow_unverified or cached.expires <= time.time():
                raise
            return replace(cached, is_verified=False)
        self._cache.pop(digests[0], None)
        if stored is None or stored.role not in PERMISSIONS_BY_ROLE:
            return None
        session = DashboardSession(
            DashboardUser(stored.name, stored.role, stored.tenant),
            derive_form_token(cookie),
            stored.expires_at.timestamp(),
            stored.id,
        )
        self._cache[digests[0]] = (now, session)
        while len(self._cache) > MAX_CACHED_SESSIONS:
            self._cache.popitem(last=False)
        return session

    async def end_session(self, connection: Connection, cookie: str | None) -> DashboardSession | None:
        """End the session of a cookie and return it, or None if the cookie has none."""
        if not cookie or len(cookie) > MAX_SESSION_COOKIE_CHARS:
            return None
        digests = self._key_verifier.hash_bound_secret(cookie)
        self._cache.pop(digests[0], None)
        stored = await sessions.find_session(connection, digests)
        if stored is None or stored.role not in PERMISSIONS_BY_ROLE:
            return None
        await sessions.end_session(connection, stored.id)
        user = DashboardUser(stored.name, stored.role, stored.tenant)
        return DashboardSession(user, "", stored.expires_at.timestamp(), stored.id)

    def close_streams(self, session: DashboardSession) -> None:
        """Close the open streams of an ended session in this process, without waiting for the next check."""
        if session.id is not None:
            self._access_monitor.end_session(session.id)


def derive_form_token(cookie: str) -> str:
    """Return the form token of a session. It does not reveal the cookie."""
    return hmac.new(cookie.encode("utf-8", "surrogatepass"), b"form token", hashlib.sha256).hexdigest()[:32]


def mask_form_token(token: str) -> str:
    """Return the form token combined with random bytes, so that it differs in each response."""
    content = token.encode()
    pad = secrets.token_bytes(len(content))
    return (pad + bytes(a ^ b for a, b in zip(pad, content, strict=True))).hex()


def form_token_matches(text: str, token: str) -> bool:
    """Return whether a submitted form token, masked or not, is the token of the session."""
    submitted = text.encode("utf-8", "replace")
    if len(submitted) == 4 * len(token.encode()):
        try:
            content = bytes.fromhex(text)
        except ValueError:
            return False
        half = len(content) // 2
        submitted = bytes(a ^ b for a, b in zip(content[:half], content[half:], strict=True))
    return hmac.compare_digest(submitted, token.encode())


class CookieSigner:
    """Signs and verifies cookies with a key derived from the signing key or the service key."""

    def __init__(self, settings: Settings) -> None:
        key = settings.signing_key or settings.service_key
        seed = key.reveal().encode() if key is not None else secrets.token_bytes(32)
        self._key = hmac.digest(seed, b"holdfast dashboard", hashlib.sha256)

    def sign_value(self, purpose: str, value: Any) -> str:
        """Encode a value as a signed cookie text. The signature is valid for one purpose only."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")
        return f"{body}.{self._compute_signature(purpose, body)}"

    def verify_value(self, purpose: str, text: str | None) -> Any:
        """Return the value in a signed cookie text, or None if the signature is not valid for the purpose."""
        body, _, signature = (text or "").partition(".")
        expected = self._compute_signature(purpose, body)
        if not hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), expected.encode()):
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (ValueError, msgspec.DecodeError):
            return None

    def _compute_signature(self, purpose: str, body: str) -> str:
        return hmac.new(
            self._key, f"{purpose}\0{body}".encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()

    def create_host_session(self, user: DashboardUser) -> DashboardSession:
        """Return a session for a user whom the host application identified."""
        seed = f"{user.name}\0{user.role}\0{user.tenant}"
        token = self._compute_signature("hosted", seed)[:32]
        return DashboardSession(user, token, time.time() + SESSION_LIFETIME_S)
