"""Verify the JWTs of users: signature, times, issuer, audience and subject.

The key decides the algorithm and the token only selects a key. HS256 is verified with the configured secret
only. Every other algorithm is verified with the public key of the key set that has the token's `kid`. Keys in
the token's header (`jwk`, `jku`, `x5u`, `x5c`) are ignored, and the algorithm `none` is rejected.

Key rotation: an unknown `kid` fetches the key set again, so that a new key works at once. Fetches are a few
seconds apart, so that invalid tokens cannot cause a flood of requests. A key that was removed from the set is
rejected within ten minutes.
"""

from __future__ import annotations

import asyncio
import logging
import re
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

TOKEN_CACHE_LIFETIME_S = 1.0
SECRET_TOKEN_CACHE_LIFETIME_S = 60.0
MAX_CACHED_TOKENS = 1000
CLOCK_LEEWAY_S = 10
MAX_TOKEN_CHARS = 16_384
MAX_TOKEN_SUBJECT_BYTES = 200
MIN_JWT_SECRET_CHARS = 32
MAX_TOKEN_EXPIRY_UNIX_S = 253_402_300_799  # Unix time of the last second of the year 9999
KEY_SET_CACHE_LIFETIME_S = 600.0
MIN_KEY_SET_FETCH_INTERVAL_S = 5.0
KEY_SET_FETCH_TIMEOUT_S = 5
MAX_KEY_SET_BYTES = 1_000_000
PUBLIC_KEY_ALGORITHMS = {
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
}  # fmt: skip
_DEFAULT_ALGORITHM_BY_KEY_TYPE = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("EC", "P-384"): "ES384",
    ("EC", "P-521"): "ES512",
    ("OKP", "Ed25519"): "EdDSA",
}
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_log = logging.getLogger("holdfast.server.api")


class UnauthenticatedError(HTTPException):
    """The request has no valid credential (401). The response does not say why a credential is invalid.

    >>> from starlette.requests import Request
    >>> from holdfast.server import UnauthenticatedError, identify_caller
    >>> async def is_signed_in(request: Request) -> bool:
    ...     try:
    ...         return (await identify_caller(request)).kind != "anonymous"
    ...     except UnauthenticatedError:
    ...         return False
    """

    def __init__(self, detail: str = "The token is not valid") -> None:
        super().__init__(401, detail)


@dataclass(frozen=True)
class VerificationKey:
    """A key for verifying token signatures, and the only algorithm that is accepted with the key."""

    kid: str | None
    algorithm: str
    key: Any


@dataclass(frozen=True, slots=True)
class CachedToken:
    """The claims of a verified token, how it is signed, and when it was verified."""

    claims: dict[str, Any]
    algorithm: str
    verified_at: float  # monotonic time
    verified_at_unix: float

    def is_valid(self) -> bool:
        """Return whether the token is still believed without verifying it again."""
        lifetime_s = SECRET_TOKEN_CACHE_LIFETIME_S if self.algorithm == "HS256" else TOKEN_CACHE_LIFETIME_S
        if time.monotonic() - self.verified_at >= lifetime_s:
            return False
        # If the clock was set back, the token may not be valid yet: it is verified again.
        return bool(self.verified_at_unix <= time.time() < self.claims["exp"])


class TokenVerifier:
    """Verifier of user tokens (JWTs), with the secret and the key set of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.configured = settings.jwt_secret is not None or settings.jwt_jwks is not None
        if self.configured and not settings.jwt_issuer:
            raise SettingsError(
                "User tokens are configured without an issuer.",
                fix="Set HOLDFAST_JWT_ISSUER to the `iss` claim of your tokens.",
                field="jwt_issuer",
            )
        if settings.jwt_secret is not None and len(settings.jwt_secret.reveal()) < MIN_JWT_SECRET_CHARS:
            raise SettingsError(
                f"jwt_secret is shorter than {MIN_JWT_SECRET_CHARS} characters.",
                fix="Use a longer secret.",
                field="jwt_secret",
            )
        self._key_set = PublicKeySet(settings.jwt_jwks) if settings.jwt_jwks else None
        self._cache: dict[str, CachedToken] = {}

    async def verify_token(self, token: str) -> dict[str, Any]:
        """Return the claims of a valid token. Raise `UnauthenticatedError` for an invalid token.

        A valid token is cached until it expires, because verifying costs more than the rest of a small
        request: for a second, or for a minute if it is signed with the configured secret, which nobody can
        withdraw while this process runs.
        """
        cached = self._cache.get(token)
        if cached is not None and cached.is_valid():
            return cached.claims
        self._cache.pop(token, None)
        claims, algorithm = await self._verify_uncached_token(token)
        if claims["exp"] - time.time() > TOKEN_CACHE_LIFETIME_S:
            if len(self._cache) >= MAX_CACHED_TOKENS:
                self._cache.clear()
            self._cache[token] = CachedToken(claims, algorithm, time.monotonic(), time.time())
        return claims

    async def _verify_uncached_token(self, token: str) -> tuple[dict[str, Any], str]:
        """Return the claims of a token and the algorithm of its signature."""
        if not self.configured or len(token) > MAX_TOKEN_CHARS or not token.isascii():
            raise UnauthenticatedError
        try:
            header = jwt.get_unverified_header(token)
            key = await self._get_verification_key(header)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self._settings.jwt_audience,
                issuer=self._settings.jwt_issuer,
                leeway=CLOCK_LEEWAY_S,
                options={"require": ["exp", "aud", "iss", "sub"], "enforce_minimum_key_length": True},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise UnauthenticatedError from None
        _validate_token_claims(claims)
        return claims, key.algorithm

    async def _get_verification_key(self, header: dict[str, Any]) -> VerificationKey:
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header or (kid is not None and not isinstance(kid, str)):
            raise UnauthenticatedError
        if algorithm == "HS256" and self._settings.jwt_secret is not None:
            return VerificationKey(None, "HS256", self._settings.jwt_secret.reveal())
        if self._key_set is None or algorithm not in PUBLIC_KEY_ALGORITHMS:
            raise UnauthenticatedError
        key = await self._key_set.find_public_key(kid)
        if key is None or key.algorithm != algorithm:
            raise UnauthenticatedError
        return key


def _validate_token_claims(claims: dict[str, Any]) -> None:
    """Reject a token whose subject, role or expiry time is not valid for a user."""
    if not _can_store_claims(claims):
        raise UnauthenticatedError
    subject, expires_at = claims["sub"], claims["exp"]
    if not isinstance(subject, str) or not subject.strip() or len(subject.encode()) > MAX_TOKEN_SUBJECT_BYTES:
        raise UnauthenticatedError
    if not subject.isprintable() or isinstance(expires_at, bool) or not isinstance(expires_at, (int, float)):
        raise UnauthenticatedError
    if expires_at > MAX_TOKEN_EXPIRY_UNIX_S:
        raise UnauthenticatedError
    if claims.get("role", "authenticated") != "authenticated":
        raise UnauthenticatedError


def _can_store_claims(claims: dict[str, Any]) -> bool:
    """Return whether PostgreSQL can store the claims as JSON. Row-level security reads them there.

    It cannot store NUL characters, halves of surrogate pairs, and numbers that JSON has no notation for. A
    signature does not rule them out.
    """
    try:
        return _NUL_IN_JSON.search(msgspec.json.encode(claims)) is None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False


class PublicKeySet:
    """Cached public keys of a JWKS URL or file, by key id (`kid`)."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._keys: dict[str | None, VerificationKey] = {}
        self._fetched_at = float("-inf")
        self._fetch_lock = asyncio.Lock()

    async def find_public_key(self, kid: str | None) -> VerificationKey | None:
        """Return the public key with this `kid`, or None. Without `kid`, return the only key of the set."""
        if time.monotonic() - self._fetched_at > KEY_SET_CACHE_LIFETIME_S or self._is_key_missing(kid):
            async with self._fetch_lock:
                min_age_s = (
                    KEY_SET_CACHE_LIFETIME_S
                    if not self._is_key_missing(kid)
                    else MIN_KEY_SET_FETCH_INTERVAL_S
                )
                if time.monotonic() - self._fetched_at > min_age_s:
                    await self._fetch_key_set()
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    def _is_key_missing(self, kid: str | None) -> bool:
        return not self._keys if kid is None else kid not in self._keys

    async def _fetch_key_set(self) -> None:
        self._fetched_at = time.monotonic()
        try:
            keys = [
                _parse_jwk(jwk) for jwk in msgspec.json.decode(await self._read_key_set_document())["keys"]
            ]
        except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError, jwt.PyJWTError) as error:
            _log.warning("the key set for user tokens cannot be read: %s", type(error).__name__)
            if not self._keys:
                raise HTTPException(503, "Tokens cannot be verified at the moment") from None
            return
        self._keys = {key.kid: key for key in keys if key is not None}

    async def _read_key_set_document(self) -> bytes:
        if not self._location.startswith(("https://", "http://")):
            return await asyncio.to_thread(Path(self._location).read_bytes)
        async with httpx.AsyncClient(timeout=KEY_SET_FETCH_TIMEOUT_S, follow_redirects=False) as client:
            response = await client.get(self._location)
            response.raise_for_status()
            if len(response.content) > MAX_KEY_SET_BYTES:
                raise ValueError("the key set is too large")
            return response.content


def _parse_jwk(value: object) -> VerificationKey | None:
    """Parse a JWK as a verification key. Return None for symmetric keys and for other uses."""
    if not isinstance(value, dict):
        raise TypeError("a key must be an object")
    jwk = cast("dict[str, Any]", value)
    key_type = (str(jwk.get("kty")), jwk.get("crv"))
    algorithm = jwk.get("alg") or _DEFAULT_ALGORITHM_BY_KEY_TYPE.get(key_type)
    if jwk.get("kty") == "oct" or jwk.get("use", "sig") != "sig" or algorithm not in PUBLIC_KEY_ALGORITHMS:
        return None
    public = {name: part for name, part in jwk.items() if name != "d"}
    return VerificationKey(jwk.get("kid"), str(algorithm), jwt.PyJWK(public, algorithm=str(algorithm)))
