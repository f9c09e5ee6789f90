"""Sessions: a signed cookie that identifies the user, and the token that every form of the dashboard carries.

The cookie holds the name, role, tenant and expiry, and a signature. The server stores nothing, so every
process accepts every session. The form token is bound to the session: a form on another site cannot know it,
even where the browser would send the cookie along.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.server.dashboard.roles import PERMISSIONS_BY_ROLE, DashboardUser
from holdfast.settings import Settings

SESSION_COOKIE = "holdfast_session"
FLASH_COOKIE = "holdfast_flash"
SESSION_LIFETIME_S = 12 * 3600


@dataclass(frozen=True)
class DashboardSession:
    """A login session: the user, the form token, and the expiry time in seconds since the epoch."""

    user: DashboardUser
    token: str
    expires: float


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

    def create_session_cookie(self, user: DashboardUser) -> str:
        """Create a session for a user and return its signed cookie value."""
        return self.sign_value(
            "session",
            {
                "name": user.name,
                "role": user.role,
                "tenant": user.tenant,
                "expires": time.time() + SESSION_LIFETIME_S,
                "token": secrets.token_urlsafe(16),
            },
        )

    def read_session_cookie(self, cookie: str | None) -> DashboardSession | None:
        """Return the session in a cookie, or None if it is forged, expired or names an unknown role."""
        value = self.verify_value("session", cookie)
        if not isinstance(value, dict):
            return None
        body: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        if body.get("role") not in PERMISSIONS_BY_ROLE or float(body.get("expires", 0)) < time.time():
            return None
        user = DashboardUser(str(body["name"]), body["role"], body.get("tenant"))
        return DashboardSession(user, str(body["token"]), float(body["expires"]))

    def create_host_session(self, user: DashboardUser) -> DashboardSession:
        """Return a session for a user whom the host application identified."""
        seed = f"{user.name}\0{user.role}\0{user.tenant}"
        token = self._compute_signature("hosted", seed)[:32]
        return DashboardSession(user, token, time.time() + SESSION_LIFETIME_S)
