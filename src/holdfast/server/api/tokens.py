"""Tokens of users: JWTs whose signature, time, issuer, audience and subject are all checked.

A key carries its algorithm, and a token only chooses among the keys: HS256 is checked with the secret and
with nothing else, every other algorithm with the public key of the set that has the token's `kid`. Keys
that come in a token's header (`jwk`, `jku`, `x5u`, `x5c`) are never looked at, and `none` is no algorithm.

Rotation: an unknown `kid` makes us fetch the set again, at most every few seconds, so a new key works at
once and strangers cannot make us fetch for ever. A key that left the set is forgotten within ten minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import jwt
import msgspec
from starlette.exceptions import HTTPException

from holdfast.errors import SettingsError
from holdfast.settings import Settings

LEEWAY_SECONDS = 10
LONGEST = 16_384
LAST_SECOND = 253_402_300_799  # of the year 9999
FRESH_SECONDS = 600.0
AGAIN_SECONDS = 5.0
ALGORITHMS = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
_BY_SHAPE = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("EC", "P-384"): "ES384",
    ("EC", "P-521"): "ES512",
    ("OKP", "Ed25519"): "EdDSA",
}
_log = logging.getLogger("holdfast.server.api")


class UnauthenticatedError(HTTPException):
    """401: no credential, or one that proves nothing. Says no more than that to whoever holds it."""

    def __init__(self, detail: str = "The token is not valid") -> None:
        super().__init__(401, detail)


@dataclass(frozen=True)
class VerifyingKey:
    kid: str | None
    algorithm: str
    key: Any


class Tokens:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.configured = settings.jwt_secret is not None or settings.jwt_jwks is not None
        if self.configured and not settings.jwt_issuer:
            raise SettingsError(
                "User tokens are configured without an issuer.",
                fix="Set HOLDFAST_JWT_ISSUER to the `iss` that the tokens carry.",
                field="jwt_issuer",
            )
        if settings.jwt_secret is not None and len(settings.jwt_secret.reveal()) < 32:
            raise SettingsError("jwt_secret is shorter than 32 characters.", field="jwt_secret")
        self._set = KeySet(settings.jwt_jwks) if settings.jwt_jwks else None

    async def verify(self, token: str) -> dict[str, Any]:
        """The claims of a token that holds in every respect."""
        if not self.configured or len(token) > LONGEST or not token.isascii():
            raise UnauthenticatedError
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(header)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self._settings.jwt_audience,
                issuer=self._settings.jwt_issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "aud", "iss", "sub"], "enforce_minimum_key_length": True},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise UnauthenticatedError from None
        _refuse_odd(claims)
        return claims

    async def _key(self, header: dict[str, Any]) -> VerifyingKey:
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header or (kid is not None and not isinstance(kid, str)):
            raise UnauthenticatedError
        if algorithm == "HS256" and self._settings.jwt_secret is not None:
            return VerifyingKey(None, "HS256", self._settings.jwt_secret.reveal())
        if self._set is None or algorithm not in ALGORITHMS:
            raise UnauthenticatedError
        key = await self._set.find(kid)
        if key is None or key.algorithm != algorithm:
            raise UnauthenticatedError
        return key


def _refuse_odd(claims: dict[str, Any]) -> None:
    """What is signed and still no user: no usable subject, another role, a time that is no number."""
    subject, expires = claims["sub"], claims["exp"]
    if not isinstance(subject, str) or not subject.strip() or len(subject.encode()) > 200:
        raise UnauthenticatedError
    if not subject.isprintable() or isinstance(expires, bool) or not isinstance(expires, (int, float)):
        raise UnauthenticatedError
    if expires > LAST_SECOND:
        raise UnauthenticatedError
    if claims.get("role", "authenticated") != "authenticated":
        raise UnauthenticatedError


class KeySet:
    """Public keys by `kid`, from an address or a file, fetched when needed and not too often."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._keys: dict[str | None, VerifyingKey] = {}
        self._fetched_at = float("-inf")
        self._fetching = asyncio.Lock()

    async def find(self, kid: str | None) -> VerifyingKey | None:
        now = time.monotonic()
        if now - self._fetched_at > FRESH_SECONDS or self._lacks(kid):
            async with self._fetching:
                wait = FRESH_SECONDS if not self._lacks(kid) else AGAIN_SECONDS
                if time.monotonic() - self._fetched_at > wait:
                    await self._fetch()
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    def _lacks(self, kid: str | None) -> bool:
        return not self._keys if kid is None else kid not in self._keys

    async def _fetch(self) -> None:
        self._fetched_at = time.monotonic()
        try:
            keys = [_verifying(each) for each in msgspec.json.decode(await self._read())["keys"]]
        except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError, jwt.PyJWTError) as problem:
            _log.warning("the key set for user tokens cannot be read: %s", type(problem).__name__)
            if not self._keys:
                raise HTTPException(503, "Tokens cannot be checked at the moment") from None
            return
        self._keys = {key.kid: key for key in keys if key is not None}

    async def _read(self) -> bytes:
        if not self._place.startswith(("https://", "http://")):
            return await asyncio.to_thread(Path(self._place).read_bytes)
        async with httpx.AsyncClient(timeout=5, follow_redirects=False) as client:
            answer = await client.get(self._place)
            answer.raise_for_status()
            if len(answer.content) > 1_000_000:
                raise ValueError("the key set is too long")
            return answer.content


def _verifying(found: object) -> VerifyingKey | None:
    """A key of the set that can check signatures. Shared secrets have no place in a public set."""
    if not isinstance(found, dict):
        raise TypeError("a key is an object")
    jwk = cast("dict[str, Any]", found)
    shape = (str(jwk.get("kty")), jwk.get("crv"))
    algorithm = jwk.get("alg") or _BY_SHAPE.get(shape)
    if jwk.get("kty") == "oct" or jwk.get("use", "sig") != "sig" or algorithm not in ALGORITHMS:
        return None
    public = {name: value for name, value in jwk.items() if name != "d"}
    return VerifyingKey(jwk.get("kid"), str(algorithm), jwt.PyJWK(public, algorithm=str(algorithm)))
