"""Who a browser belongs to: a signed cookie, and the token that our own forms carry.

The cookie says name, role, tenant and until when, and is signed: nothing is kept on the server, so every
process knows every session. The form token is bound to the session, which makes a form on another site
worthless even where a browser would send the cookie along.
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

from holdfast.server.dashboard.roles import ROLES, Visitor
from holdfast.settings import Settings

COOKIE = "holdfast_session"
FLASH = "holdfast_flash"
LIFE_SECONDS = 12 * 3600


@dataclass(frozen=True)
class Session:
    visitor: Visitor
    token: str
    expires: float


class Signer:
    def __init__(self, settings: Settings) -> None:
        key = settings.signing_key or settings.service_key
        seed = key.reveal().encode() if key is not None else secrets.token_bytes(32)
        self._key = hmac.digest(seed, b"holdfast dashboard", hashlib.sha256)

    def sign(self, purpose: str, value: Any) -> str:
        body = base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")
        return f"{body}.{self._mark(purpose, body)}"

    def read(self, purpose: str, text: str | None) -> Any:
        """What was signed for this purpose, or None."""
        body, _, mark = (text or "").partition(".")
        expected = self._mark(purpose, body)
        if not hmac.compare_digest(mark.encode("utf-8", "surrogatepass"), expected.encode()):
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (ValueError, msgspec.DecodeError):
            return None

    def _mark(self, purpose: str, body: str) -> str:
        return hmac.new(
            self._key, f"{purpose}\0{body}".encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()

    def start(self, visitor: Visitor) -> str:
        """The cookie of a new session."""
        return self.sign(
            "session",
            {
                "name": visitor.name,
                "role": visitor.role,
                "tenant": visitor.tenant,
                "expires": time.time() + LIFE_SECONDS,
                "token": secrets.token_urlsafe(16),
            },
        )

    def session(self, cookie: str | None) -> Session | None:
        found = self.read("session", cookie)
        if not isinstance(found, dict):
            return None
        said: dict[str, Any] = found  # pyright: ignore[reportUnknownVariableType]
        if said.get("role") not in ROLES or float(said.get("expires", 0)) < time.time():
            return None
        visitor = Visitor(str(said["name"]), said["role"], said.get("tenant"))
        return Session(visitor, str(said["token"]), float(said["expires"]))

    def hosted(self, visitor: Visitor) -> Session:
        """The session of somebody whom the host application vouches for, on every request anew."""
        seed = f"{visitor.name}\0{visitor.role}\0{visitor.tenant}"
        return Session(visitor, self._mark("hosted", seed)[:32], time.time() + LIFE_SECONDS)
