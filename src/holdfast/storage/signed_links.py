"""Signed links to files that our own server serves, for stores that cannot sign URLs.

A link is one token, `payload.signature`. Everything the link permits (method, file, key, expiry, inline or
attachment, content type) is in the payload, and the signature covers the whole payload. No parameter outside
the token can be changed, repeated or reordered, and each token has exactly one spelling. Links are not
stored.
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
from holdfast.storage.file_names import is_safe_inline_type

MIN_LINK_LIFETIME, MAX_LINK_LIFETIME = timedelta(minutes=5), timedelta(hours=1)
MAX_LINK_TOKEN_CHARS = 4000
_SIGNATURE_CONTEXT = b"holdfast file link 1\n"


class SignedFileLink(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed content of a file link: the file, the method and the expiry."""

    method: Literal["GET"]
    artifact: UUID
    key: str
    expires: int
    inline: bool
    name: str
    content_type: str


@dataclass(frozen=True)
class FileLinkSigner:
    """Creates and verifies the tokens of file links with one signing key."""

    key: Secret

    @classmethod
    def from_settings(cls, settings: Settings) -> FileLinkSigner:
        """Create a signer with the setting `signing_key`, or with a generated key in the home folder."""
        return cls(settings.signing_key or _load_or_create_signing_key(settings.home / "signing-key"))

    def create_token(self, file: Artifact, expires_in: timedelta, *, inline: bool = False) -> str:
        """Return a signed token for the path /files/. It expires at the latest with the file."""
        expires_at = time.time() + check_link_lifetime(expires_in).total_seconds()
        if file.expires_at is not None:
            expires_at = min(expires_at, file.expires_at.timestamp())
        inline = inline and is_safe_inline_type(file.content_type)
        grant = SignedFileLink(
            "GET", file.id, file.key, int(expires_at), inline, file.name, file.content_type
        )
        payload = msgspec.json.encode(grant)
        return f"{_encode_base64(payload)}.{_encode_base64(self._compute_signature(payload))}"

    def verify_token(self, token: str, *, now: float | None = None) -> SignedFileLink:
        """Return the grant of a token, after checking its signature and its expiry.

        Raise NotFoundError for a link that this key did not sign, and GoneError for an expired link.
        """
        encoded_payload, dot, encoded_signature = token.partition(".")
        if not dot or len(token) > MAX_LINK_TOKEN_CHARS:
            raise _build_invalid_link_error()
        payload, signature = _decode_base64(encoded_payload), _decode_base64(encoded_signature)
        if not hmac.compare_digest(signature, self._compute_signature(payload)):
            raise _build_invalid_link_error()
        try:
            grant = msgspec.json.decode(payload, type=SignedFileLink)
        except msgspec.DecodeError:
            raise _build_invalid_link_error() from None
        if (time.time() if now is None else now) >= grant.expires:
            raise GoneError("This link has expired.", fix="Request a new link.")
        return grant

    def _compute_signature(self, payload: bytes) -> bytes:
        return hmac.digest(self.key.reveal().encode(), _SIGNATURE_CONTEXT + payload, hashlib.sha256)


def check_link_lifetime(expires_in: timedelta) -> timedelta:
    """Return a lifetime between 5 minutes and 1 hour unchanged, otherwise raise InvalidError."""
    if not MIN_LINK_LIFETIME <= expires_in <= MAX_LINK_LIFETIME:
        raise InvalidError(
            f"The lifetime of a link must be between 5 minutes and 1 hour, not {expires_in}.",
            fix="Request a new link when you need one; creating a link is cheap.",
            field="expires",
        )
    return expires_in


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _build_invalid_link_error() from None
    if _encode_base64(data) != text:  # a second spelling of the same bytes
        raise _build_invalid_link_error()
    return data


def _build_invalid_link_error() -> NotFoundError:
    return NotFoundError("The download link is not valid.")


def _load_or_create_signing_key(path: Path) -> Secret:
    """Read the signing key of this machine. Create it first if needed, readable by its owner only."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new_file = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
        try:
            os.link(new_file, path)  # atomic: if two processes create a key, the first one wins
        except FileExistsError:
            pass
        finally:
            new_file.unlink()
    return Secret(path.read_text(encoding="ascii").strip())
