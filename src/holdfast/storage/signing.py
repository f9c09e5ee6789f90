"""Links to files that we serve ourselves, for stores that make none.

A link is one word, `payload.signature`: everything that it allows (method, file, key, until when, shown or
saved, type) is in the payload, and the signature is over all of it. There is nothing beside it that could be
changed, repeated or put in another order, and only one way to write each word. Nobody stores links.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec

from holdfast.errors import GoneError, InvalidError, NotFoundError
from holdfast.model import Artifact
from holdfast.settings import Secret, Settings
from holdfast.storage.names import may_be_shown

SHORTEST, LONGEST = timedelta(minutes=5), timedelta(hours=1)
MOST_CHARACTERS = 4000
_CONTEXT = b"holdfast file link 1\n"


class Grant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the holder of a link may do."""

    method: Literal["GET"]
    artifact: UUID
    key: str
    expires: int
    inline: bool
    name: str
    content_type: str


@dataclass(frozen=True)
class Signer:
    key: Secret

    @classmethod
    def of(cls, settings: Settings) -> Signer:
        return cls(settings.signing_key or _kept(settings.home / "signing-key"))

    def sign(self, file: Artifact, expires: timedelta, *, inline: bool = False) -> str:
        """A word for the path /files/; it never outlives the file."""
        until = time.time() + check_span(expires).total_seconds()
        if file.expires_at is not None:
            until = min(until, file.expires_at.timestamp())
        shown = inline and may_be_shown(file.content_type)
        grant = Grant("GET", file.id, file.key, int(until), shown, file.name, file.content_type)
        payload = msgspec.json.encode(grant)
        return f"{_word(payload)}.{_word(self._digest(payload))}"

    def read(self, word: str, *, now: float | None = None) -> Grant:
        """What a link allows. NotFoundError: it is not ours. GoneError: its time is over."""
        payload_word, dot, signature_word = word.partition(".")
        if not dot or len(word) > MOST_CHARACTERS:
            raise _forged()
        payload, signature = _bytes(payload_word), _bytes(signature_word)
        if not hmac.compare_digest(signature, self._digest(payload)):
            raise _forged()
        try:
            grant = msgspec.json.decode(payload, type=Grant)
        except msgspec.DecodeError:
            raise _forged() from None
        if (time.time() if now is None else now) >= grant.expires:
            raise GoneError("This link has expired.", fix="Ask for a new one.")
        return grant

    def _digest(self, payload: bytes) -> bytes:
        return hmac.digest(self.key.reveal().encode(), _CONTEXT + payload, hashlib.sha256)


def check_span(expires: timedelta) -> timedelta:
    if not SHORTEST <= expires <= LONGEST:
        raise InvalidError(
            f"A link lasts from 5 minutes to 1 hour, not {expires}.",
            fix="Ask for a new link when it is needed; it costs nothing.",
            field="expires",
        )
    return expires


def _word(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _bytes(word: str) -> bytes:
    try:
        octets = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _forged() from None
    if _word(octets) != word:  # another way to write the same bits
        raise _forged()
    return octets


def _forged() -> NotFoundError:
    return NotFoundError("There is no such link.")


def _kept(place: Path) -> Secret:
    """A key for this machine, made once and readable by its owner only."""
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f"{place.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
        try:
            os.link(fresh, place)  # whole or not at all, and the first one wins
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return Secret(place.read_text(encoding="ascii").strip())
