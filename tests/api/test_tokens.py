"""User tokens: valid tokens are accepted and more than sixty kinds of forged tokens are rejected."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from api_clients import ISSUER, SECRET, bearer_headers, create_service_key, make_claims, make_token
from book_app import SERVICE_KEY, book_job
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from holdfast.engine.connection import Database
from holdfast.errors import SettingsError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PUBLIC_PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def jwk(key: Any, kid: str, **more: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        created = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        created = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        created = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**created, "kid": kid, **more}


def encode_base64url(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def encode_unchecked(header: dict[str, Any], payload: object, secret: bytes = SECRET.encode()) -> str:
    """Encode a token that JWT libraries refuse to create."""
    signed = f"{encode_base64url(header)}.{encode_base64url(payload)}"
    return f"{signed}.{encode_base64url(hmac.digest(secret, signed.encode(), sha256))}"


def make_hs256_token(**changes: Any) -> str:
    """Return a correctly signed token with changed claims. None removes a claim."""
    body = {name: value for name, value in make_claims(**changes).items() if value is not None}
    return encode_unchecked({"alg": "HS256", "typ": "JWT"}, body)


def make_forged_tokens() -> dict[str, str]:
    good = make_token()
    head, body, signature = good.split(".")
    now = int(time.time())
    rs = {"alg": "RS256", "typ": "JWT", "kid": "rsa"}
    tokens = {
        f"alg {name}": f"{encode_base64url({'alg': name, 'typ': 'JWT'})}.{encode_base64url(make_claims())}."
        for name in ("none", "None", "NONE", "nOnE", "", "HS256", "RS256")
    }
    tokens |= {
        f"{name} is not pinned": jwt.encode(make_claims(), SECRET, name) for name in ("HS384", "HS512")
    }
    tokens |= {
        "no alg": encode_unchecked({"typ": "JWT"}, make_claims()),
        "alg is a list": encode_unchecked({"alg": ["HS256"]}, make_claims()),
        "alg is null": encode_unchecked({"alg": None}, make_claims()),
        "key confusion: PEM": encode_unchecked({"alg": "HS256", "kid": "rsa"}, make_claims(), PUBLIC_PEM),
        "key confusion: PEM stripped": encode_unchecked({"alg": "HS256"}, make_claims(), PUBLIC_PEM.strip()),
        "key confusion: jwk": encode_unchecked(
            {"alg": "HS256"}, make_claims(), encode_base64url(jwk(RSA, "rsa")).encode()
        ),
        "key confusion: alg RS256 over HMAC": encode_unchecked(rs, make_claims(), PUBLIC_PEM),
        "another secret": encode_unchecked(
            {"alg": "HS256"}, make_claims(), b"another secret of the same length....."
        ),
        "an empty secret": encode_unchecked({"alg": "HS256"}, make_claims(), b""),
        "the issuer as secret": encode_unchecked({"alg": "HS256"}, make_claims(), ISSUER.encode()),
        "another RSA key": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "rsa"}),
        "another RSA key, unknown kid": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "new"}),
        "another RSA key, no kid": jwt.encode(make_claims(), OTHER_RSA, "RS256"),
        "right key, no kid among many": jwt.encode(make_claims(), RSA, "RS256"),
        "another algorithm of the same key": jwt.encode(make_claims(), RSA, "PS256", headers={"kid": "rsa"}),
        "RS512 of the same key": jwt.encode(make_claims(), RSA, "RS512", headers={"kid": "rsa"}),
        "kid of a key of another kind": jwt.encode(make_claims(), RSA, "RS256", headers={"kid": "ec"}),
        "kid of the shared secret in the set": jwt.encode(
            make_claims(), "x" * 32, "HS256", headers={"kid": "shared"}
        ),
        "key for encryption": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "enc"}),
        "jwk in the header": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "mine", "jwk": jwk(OTHER_RSA, "mine")}
        ),
        "jwk in the header, known kid": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "rsa", "jwk": jwk(OTHER_RSA, "rsa")}
        ),
        "jku": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "m", "jku": "http://127.0.0.1:1/keys"}
        ),
        "x5u": jwt.encode(
            make_claims(), OTHER_RSA, "RS256", headers={"kid": "m", "x5u": "http://127.0.0.1:1/keys"}
        ),
        "x5c": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "m", "x5c": ["MIIB"]}),
        "kid is a path": encode_unchecked({"alg": "HS256", "kid": "../../../dev/null"}, make_claims(), b""),
        "kid is SQL": jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": "' or 1=1 --"}),
        "kid is a number": encode_unchecked({"alg": "HS256", "kid": 7}, make_claims()),
        "crit": encode_unchecked({"alg": "HS256", "crit": ["exp"]}, make_claims()),
        "b64 false": encode_unchecked({"alg": "HS256", "b64": False, "crit": ["b64"]}, make_claims()),
        "a changed payload": f"{head}.{encode_base64url(make_claims('bob'))}.{signature}",
        "a changed header": f"{encode_base64url({'alg': 'HS256', 'x': 1})}.{body}.{signature}",
        "a changed signature": f"{head}.{body}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}",
        "a cut signature": good[:-4],
        "no signature": f"{head}.{body}.",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.x",
        "five parts": f"{head}..{body}.{signature}.x",
        "only dots": "..",
        "no JSON": f"{encode_base64url(b'{')}.{encode_base64url(b'x')}.{signature}",
        "payload is a list": encode_unchecked({"alg": "HS256"}, [make_claims()]),
        "payload is a string": encode_unchecked({"alg": "HS256"}, "sub"),
        "header is a list": f"{encode_base64url([])}.{body}.{signature}",
        "not base64": f"{head}.{body}.%%%",
        "too long": make_hs256_token(filler="x" * 20_000),
        "deeply nested": f"{encode_base64url({'alg': 'HS256'})}.{encode_base64url(b'[' * 5000)}.{signature}",
        "expired": make_hs256_token(exp=now - 60),
        "expired long ago": make_hs256_token(exp=1),
        "exp missing": make_hs256_token(exp=None),
        "exp is text": make_hs256_token(exp="never"),
        "exp is a list": make_hs256_token(exp=[now + 600]),
        "exp is true": make_hs256_token(exp=True),
        "exp is infinite": encode_unchecked({"alg": "HS256"}, {**make_claims(), "exp": float("inf")}),
        "exp is huge": make_hs256_token(exp=10**400),
        "not yet": make_hs256_token(nbf=now + 600),
        "issued in the future": make_hs256_token(iat=now + 600),
        "aud missing": make_hs256_token(aud=None),
        "aud of another": make_hs256_token(aud="anon"),
        "aud among others": make_hs256_token(aud=["a", "b"]),
        "aud is a prefix": make_hs256_token(aud="authenticate"),
        "aud is an object": make_hs256_token(aud={"authenticated": 1}),
        "iss missing": make_hs256_token(iss=None),
        "iss of another": make_hs256_token(iss="https://evil.test"),
        "iss with a slash": make_hs256_token(iss=ISSUER + "/"),
        "iss is a list": make_hs256_token(iss=[ISSUER]),
        "sub missing": make_hs256_token(sub=None),
        "sub empty": make_hs256_token(sub=""),
        "sub blank": make_hs256_token(sub="  "),
        "sub is a number": make_hs256_token(sub=7),
        "sub is a list": make_hs256_token(sub=["ann"]),
        "sub with NUL": make_hs256_token(sub="ann\0bob"),
        "sub with a line": make_hs256_token(sub="ann\nbob"),
        "sub too long": make_hs256_token(sub="x" * 500),
        "role of a service": make_hs256_token(role="service_role"),
        "role anon": make_hs256_token(role="anon"),
        "role of the owner": make_hs256_token(role="postgres"),
        "role is a list": make_hs256_token(role=["authenticated"]),
    }  # fmt: skip
    return tokens


FORGED_TOKENS = make_forged_tokens()
VALID_TOKEN_FACTORIES: dict[str, Callable[[], str]] = {
    "HS256": make_token,
    "RS256": lambda: jwt.encode(make_claims(), RSA, "RS256", headers={"kid": "rsa"}),
    "ES256": lambda: jwt.encode(make_claims(), EC, "ES256", headers={"kid": "ec"}),
    "EdDSA": lambda: jwt.encode(make_claims(), ED, "EdDSA", headers={"kid": "ed"}),
    "Supabase": lambda: make_hs256_token(
        aud=["authenticated"], email="a@b.c", app_metadata={"provider": "email"}, aal="aal1", session_id="x"
    ),
}


@pytest.fixture
def key_set_file(tmp_path: Path) -> Path:
    place = tmp_path / "jwks.json"
    shared = {"kty": "oct", "k": encode_base64url(b"x" * 32), "kid": "shared", "alg": "HS256"}
    encrypting = jwk(OTHER_RSA, "enc", use="enc")
    result = [jwk(RSA, "rsa"), jwk(EC, "ec"), jwk(ED, "ed"), shared, encrypting]
    place.write_text(json.dumps({"keys": result}))
    return place


@pytest.fixture
async def api(db: Database, api_settings: Settings, key_set_file: Path) -> AsyncGenerator[httpx.AsyncClient]:
    app = create_app(replace(api_settings, jwt_jwks=str(key_set_file)), database=db, job_types=[book_job])
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client


async def test_forged_tokens_get_401(api: httpx.AsyncClient) -> None:
    assert len(FORGED_TOKENS) >= 60
    opened = {}
    for name, text in FORGED_TOKENS.items():
        for headers in (bearer_headers(text), {"apikey": text}):
            response = await api.get("/api/jobs", headers=headers)
            if response.status_code != 401 or "jobs" in response.json():
                opened[name] = response.status_code
    assert opened == {}


@pytest.mark.parametrize("kind", VALID_TOKEN_FACTORIES)
async def test_valid_tokens_are_accepted(api: httpx.AsyncClient, kind: str) -> None:
    response = await api.get("/api/jobs", headers=bearer_headers(VALID_TOKEN_FACTORIES[kind]()))
    assert response.status_code == 200, response.text


async def test_keys_are_rotated_without_downtime(
    api: httpx.AsyncClient, key_set_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.token_verification.MIN_KEY_SET_FETCH_INTERVAL_S", 0)
    old = bearer_headers(jwt.encode(make_claims(), RSA, "RS256", headers={"kid": "rsa"}))
    new_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    new = bearer_headers(jwt.encode(make_claims(), new_key, "RS256", headers={"kid": "next"}))
    assert (await api.get("/api/jobs", headers=old)).status_code == 200
    assert (await api.get("/api/jobs", headers=new)).status_code == 401
    key_set_file.write_text(json.dumps({"keys": [jwk(RSA, "rsa"), jwk(new_key, "next")]}))
    assert (await api.get("/api/jobs", headers=new)).status_code == 200
    assert (await api.get("/api/jobs", headers=old)).status_code == 200
    key_set_file.write_text(json.dumps({"keys": [jwk(new_key, "next")]}))
    monkeypatch.setattr("holdfast.server.api.token_verification.KEY_SET_CACHE_LIFETIME_S", 0)
    assert (await api.get("/api/jobs", headers=old)).status_code == 401
    key_set_file.write_text("{")  # an invalid key set does not replace the known one
    assert (await api.get("/api/jobs", headers=new)).status_code == 200


async def test_unknown_key_ids_do_not_cause_endless_fetches(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.token_verification.MIN_KEY_SET_FETCH_INTERVAL_S", 1000)
    reads: list[Path] = []
    read = Path.read_bytes

    def count_and_read(path: Path) -> bytes:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", count_and_read)
    for number in range(20):
        text = jwt.encode(make_claims(), OTHER_RSA, "RS256", headers={"kid": f"unknown-{number}"})
        assert (await api.get("/api/jobs", headers=bearer_headers(text))).status_code == 401
    assert len(reads) <= 2


@pytest.mark.parametrize("wrong", [{"jwt_issuer": None}, {"jwt_secret": Secret("short")}])
def test_settings_without_issuer_or_with_a_short_secret_are_rejected(
    api_settings: Settings, db: Database, wrong: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError):
        create_app(replace(api_settings, **wrong), database=db)


async def test_cookies_work_only_if_configured_and_not_across_sites(
    db: Database, api_settings: Settings
) -> None:
    body = {"type": "book"}
    transport = httpx.ASGITransport(create_app(api_settings, database=db, job_types=[book_job]))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
        assert (await api.get("/api/jobs", headers={"cookie": f"session={make_token()}"})).status_code == 401
    app = create_app(replace(api_settings, jwt_cookie="session"), database=db, job_types=[book_job])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as api:
        mine = {"cookie": f"session={make_token()}"}
        assert (await api.get("/api/jobs", headers=mine)).status_code == 200
        for same_site in (
            {"sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
            {"origin": "http://api"},
        ):
            response = await api.post("/api/jobs/start", json=body, headers={**mine, **same_site})
            assert response.status_code == 202, same_site
        evil: tuple[dict[str, str], ...] = (
            {},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "http://evil.test"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site", "origin": "http://api"},
        )
        for headers in evil:
            for method, path in (("POST", "/api/jobs/start"), ("DELETE", f"/api/jobs/{'0' * 32}")):
                response = await api.request(method, path, headers={**mine, **headers})
                assert response.status_code == 403, headers
        # A service key is not accepted as a cookie.
        assert (await api.get("/api/jobs", headers={"cookie": f"session={SERVICE_KEY}"})).status_code == 401


async def test_service_keys_are_stored_hashed_and_revoked_at_once(
    api: httpx.AsyncClient, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.key_verification.SERVICE_KEY_CACHE_LIFETIME_S", 0)
    first, second = await create_service_key(db, "jobs"), await create_service_key(db, "jobs")
    for key in (first, second):
        assert (await api.get("/api/jobs", headers=bearer_headers(key))).status_code == 200
    async with db.connection() as connection:
        rows = str(await connection.fetch("select * from holdfast.service_keys"))
    assert first not in rows
    assert first[12:] not in rows
    admin = bearer_headers(SERVICE_KEY)
    listed = (await api.get("/api/keys", headers=admin)).json()
    assert {key["prefix"] for key in listed} == {first[:11], second[:11]}
    assert all(key["last_used_at"] for key in listed)
    assert (await api.delete(f"/api/keys/{first[:11]}", headers=admin)).status_code == 204
    assert (await api.get("/api/jobs", headers=bearer_headers(first))).status_code == 401
    assert (await api.get("/api/jobs", headers=bearer_headers(second))).status_code == 200
    assert (await api.get("/api/jobs", headers=bearer_headers(second[:-1]))).status_code == 401
    actions = [entry["action"] for entry in (await api.get("/api/audit", headers=admin)).json()]
    assert actions == ["key.revoke"]


async def test_a_key_cannot_create_a_key_with_more_scopes(api: httpx.AsyncClient, db: Database) -> None:
    maker = bearer_headers(await create_service_key(db, "keys", "jobs"))
    allowed = await api.post("/api/keys", json={"name": "x", "scopes": ["jobs"]}, headers=maker)
    assert allowed.status_code == 201
    assert (await api.get("/api/jobs", headers=bearer_headers(allowed.json()["key"]))).status_code == 200
    for scopes in (["operate"], ["*"], ["jobs", "rpc"]):
        response = await api.post("/api/keys", json={"name": "x", "scopes": scopes}, headers=maker)
        assert response.status_code == 403
    by_user = await api.post(
        "/api/keys", json={"name": "x", "scopes": ["jobs"]}, headers=bearer_headers(make_token())
    )
    assert by_user.status_code == 403
