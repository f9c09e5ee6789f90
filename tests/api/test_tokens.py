"""Tokens of users: one that holds in every respect opens, and sixty-odd forged ones do not."""

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
from books import KEY, book
from callers import ISSUER, SECRET, bearer, claims, service_key, token
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from holdfast.engine.connection import Database
from holdfast.errors import SettingsError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGE_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PUBLIC_PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def jwk(key: Any, kid: str, **more: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        made = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        made = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        made = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, **more}


def b64(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def by_hand(header: dict[str, Any], payload: object, secret: bytes = SECRET.encode()) -> str:
    """A token as libraries would refuse to make it."""
    signed = f"{b64(header)}.{b64(payload)}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), sha256))}"


def hs(**changes: Any) -> str:
    """Signed rightly, with claims changed; None takes one away."""
    body = {name: value for name, value in claims(**changes).items() if value is not None}
    return by_hand({"alg": "HS256", "typ": "JWT"}, body)


def forged() -> dict[str, str]:
    good = token()
    head, body, signature = good.split(".")
    now = int(time.time())
    rs = {"alg": "RS256", "typ": "JWT", "kid": "rsa"}
    tokens = {
        f"alg {name}": f"{b64({'alg': name, 'typ': 'JWT'})}.{b64(claims())}."
        for name in ("none", "None", "NONE", "nOnE", "", "HS256", "RS256")
    }
    tokens |= {f"{name} is not pinned": jwt.encode(claims(), SECRET, name) for name in ("HS384", "HS512")}
    tokens |= {
        "no alg": by_hand({"typ": "JWT"}, claims()),
        "alg is a list": by_hand({"alg": ["HS256"]}, claims()),
        "alg is null": by_hand({"alg": None}, claims()),
        "key confusion: PEM": by_hand({"alg": "HS256", "kid": "rsa"}, claims(), PUBLIC_PEM),
        "key confusion: PEM stripped": by_hand({"alg": "HS256"}, claims(), PUBLIC_PEM.strip()),
        "key confusion: jwk": by_hand({"alg": "HS256"}, claims(), b64(jwk(RSA, "rsa")).encode()),
        "key confusion: alg RS256 over HMAC": by_hand(rs, claims(), PUBLIC_PEM),
        "another secret": by_hand({"alg": "HS256"}, claims(), b"another secret of the same length....."),
        "an empty secret": by_hand({"alg": "HS256"}, claims(), b""),
        "the issuer as secret": by_hand({"alg": "HS256"}, claims(), ISSUER.encode()),
        "another RSA key": jwt.encode(claims(), STRANGE_RSA, "RS256", headers={"kid": "rsa"}),
        "another RSA key, unknown kid": jwt.encode(claims(), STRANGE_RSA, "RS256", headers={"kid": "new"}),
        "another RSA key, no kid": jwt.encode(claims(), STRANGE_RSA, "RS256"),
        "right key, no kid among many": jwt.encode(claims(), RSA, "RS256"),
        "another algorithm of the same key": jwt.encode(claims(), RSA, "PS256", headers={"kid": "rsa"}),
        "RS512 of the same key": jwt.encode(claims(), RSA, "RS512", headers={"kid": "rsa"}),
        "kid of a key of another kind": jwt.encode(claims(), RSA, "RS256", headers={"kid": "ec"}),
        "kid of the shared secret in the set": jwt.encode(
            claims(), "x" * 32, "HS256", headers={"kid": "shared"}
        ),
        "key for encryption": jwt.encode(claims(), STRANGE_RSA, "RS256", headers={"kid": "enc"}),
        "jwk in the header": jwt.encode(
            claims(), STRANGE_RSA, "RS256", headers={"kid": "mine", "jwk": jwk(STRANGE_RSA, "mine")}
        ),
        "jwk in the header, known kid": jwt.encode(
            claims(), STRANGE_RSA, "RS256", headers={"kid": "rsa", "jwk": jwk(STRANGE_RSA, "rsa")}
        ),
        "jku": jwt.encode(
            claims(), STRANGE_RSA, "RS256", headers={"kid": "m", "jku": "http://127.0.0.1:1/keys"}
        ),
        "x5u": jwt.encode(
            claims(), STRANGE_RSA, "RS256", headers={"kid": "m", "x5u": "http://127.0.0.1:1/keys"}
        ),
        "x5c": jwt.encode(claims(), STRANGE_RSA, "RS256", headers={"kid": "m", "x5c": ["MIIB"]}),
        "kid is a path": by_hand({"alg": "HS256", "kid": "../../../dev/null"}, claims(), b""),
        "kid is SQL": jwt.encode(claims(), STRANGE_RSA, "RS256", headers={"kid": "' or 1=1 --"}),
        "kid is a number": by_hand({"alg": "HS256", "kid": 7}, claims()),
        "crit": by_hand({"alg": "HS256", "crit": ["exp"]}, claims()),
        "b64 false": by_hand({"alg": "HS256", "b64": False, "crit": ["b64"]}, claims()),
        "a changed payload": f"{head}.{b64(claims('bob'))}.{signature}",
        "a changed header": f"{b64({'alg': 'HS256', 'x': 1})}.{body}.{signature}",
        "a changed signature": f"{head}.{body}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}",
        "a cut signature": good[:-4],
        "no signature": f"{head}.{body}.",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.x",
        "five parts": f"{head}..{body}.{signature}.x",
        "only dots": "..",
        "no JSON": f"{b64(b'{')}.{b64(b'x')}.{signature}",
        "payload is a list": by_hand({"alg": "HS256"}, [claims()]),
        "payload is a string": by_hand({"alg": "HS256"}, "sub"),
        "header is a list": f"{b64([])}.{body}.{signature}",
        "not base64": f"{head}.{body}.%%%",
        "too long": hs(filler="x" * 20_000),
        "deeply nested": f"{b64({'alg': 'HS256'})}.{b64(b'[' * 5000)}.{signature}",
        "expired": hs(exp=now - 60),
        "expired long ago": hs(exp=1),
        "exp missing": hs(exp=None),
        "exp is text": hs(exp="never"),
        "exp is a list": hs(exp=[now + 600]),
        "exp is true": hs(exp=True),
        "exp is infinite": by_hand({"alg": "HS256"}, {**claims(), "exp": float("inf")}),
        "exp is huge": hs(exp=10**400),
        "not yet": hs(nbf=now + 600),
        "issued in the future": hs(iat=now + 600),
        "aud missing": hs(aud=None),
        "aud of another": hs(aud="anon"),
        "aud among others": hs(aud=["a", "b"]),
        "aud is a prefix": hs(aud="authenticate"),
        "aud is an object": hs(aud={"authenticated": 1}),
        "iss missing": hs(iss=None),
        "iss of another": hs(iss="https://evil.test"),
        "iss with a slash": hs(iss=ISSUER + "/"),
        "iss is a list": hs(iss=[ISSUER]),
        "sub missing": hs(sub=None),
        "sub empty": hs(sub=""),
        "sub blank": hs(sub="  "),
        "sub is a number": hs(sub=7),
        "sub is a list": hs(sub=["ann"]),
        "sub with NUL": hs(sub="ann\0bob"),
        "sub with a line": hs(sub="ann\nbob"),
        "sub too long": hs(sub="x" * 500),
        "role of a service": hs(role="service_role"),
        "role anon": hs(role="anon"),
        "role of the owner": hs(role="postgres"),
        "role is a list": hs(role=["authenticated"]),
    }  # fmt: skip
    return tokens


FORGED = forged()
GOOD: dict[str, Callable[[], str]] = {
    "HS256": token,
    "RS256": lambda: jwt.encode(claims(), RSA, "RS256", headers={"kid": "rsa"}),
    "ES256": lambda: jwt.encode(claims(), EC, "ES256", headers={"kid": "ec"}),
    "EdDSA": lambda: jwt.encode(claims(), ED, "EdDSA", headers={"kid": "ed"}),
    "Supabase": lambda: hs(
        aud=["authenticated"], email="a@b.c", app_metadata={"provider": "email"}, aal="aal1", session_id="x"
    ),
}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    place = tmp_path / "jwks.json"
    shared = {"kty": "oct", "k": b64(b"x" * 32), "kid": "shared", "alg": "HS256"}
    encrypting = jwk(STRANGE_RSA, "enc", use="enc")
    found = [jwk(RSA, "rsa"), jwk(EC, "ec"), jwk(ED, "ed"), shared, encrypting]
    place.write_text(json.dumps({"keys": found}))
    return place


@pytest.fixture
async def api(db: Database, api_settings: Settings, keys: Path) -> AsyncGenerator[httpx.AsyncClient]:
    app = create_app(replace(api_settings, jwt_jwks=str(keys)), database=db, job_types=[book])
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client


async def test_no_forged_token_opens(api: httpx.AsyncClient) -> None:
    assert len(FORGED) >= 60
    opened = {}
    for name, text in FORGED.items():
        for headers in (bearer(text), {"apikey": text}):
            answer = await api.get("/api/jobs", headers=headers)
            if answer.status_code != 401 or "jobs" in answer.json():
                opened[name] = answer.status_code
    assert opened == {}


@pytest.mark.parametrize("kind", GOOD)
async def test_a_token_that_holds_opens(api: httpx.AsyncClient, kind: str) -> None:
    answer = await api.get("/api/jobs", headers=bearer(GOOD[kind]()))
    assert answer.status_code == 200, answer.text


async def test_keys_rotate_without_a_gap(
    api: httpx.AsyncClient, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.token_verification.MIN_KEY_SET_FETCH_INTERVAL_S", 0)
    old = bearer(jwt.encode(claims(), RSA, "RS256", headers={"kid": "rsa"}))
    new_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    new = bearer(jwt.encode(claims(), new_key, "RS256", headers={"kid": "next"}))
    assert (await api.get("/api/jobs", headers=old)).status_code == 200
    assert (await api.get("/api/jobs", headers=new)).status_code == 401
    keys.write_text(json.dumps({"keys": [jwk(RSA, "rsa"), jwk(new_key, "next")]}))
    assert (await api.get("/api/jobs", headers=new)).status_code == 200
    assert (await api.get("/api/jobs", headers=old)).status_code == 200
    keys.write_text(json.dumps({"keys": [jwk(new_key, "next")]}))
    monkeypatch.setattr("holdfast.server.api.token_verification.KEY_SET_CACHE_S", 0)
    assert (await api.get("/api/jobs", headers=old)).status_code == 401
    keys.write_text("{")  # a broken set does not undo the one that is known
    assert (await api.get("/api/jobs", headers=new)).status_code == 200


async def test_strangers_cannot_make_us_fetch_for_ever(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.token_verification.MIN_KEY_SET_FETCH_INTERVAL_S", 1000)
    reads: list[Path] = []
    read = Path.read_bytes

    def counted(path: Path) -> bytes:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    for number in range(20):
        text = jwt.encode(claims(), STRANGE_RSA, "RS256", headers={"kid": f"unknown-{number}"})
        assert (await api.get("/api/jobs", headers=bearer(text))).status_code == 401
    assert len(reads) <= 2


@pytest.mark.parametrize("wrong", [{"jwt_issuer": None}, {"jwt_secret": Secret("short")}])
def test_tokens_without_an_issuer_or_with_a_short_secret_are_refused(
    api_settings: Settings, db: Database, wrong: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError):
        create_app(replace(api_settings, **wrong), database=db)


async def test_cookies_count_only_when_named_and_never_from_another_site(
    db: Database, api_settings: Settings
) -> None:
    body = {"type": "book"}
    transport = httpx.ASGITransport(create_app(api_settings, database=db, job_types=[book]))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
        assert (await api.get("/api/jobs", headers={"cookie": f"session={token()}"})).status_code == 401
    app = create_app(replace(api_settings, jwt_cookie="session"), database=db, job_types=[book])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as api:
        mine = {"cookie": f"session={token()}"}
        assert (await api.get("/api/jobs", headers=mine)).status_code == 200
        for fine in ({"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "http://api"}):
            answer = await api.post("/api/jobs/start", json=body, headers={**mine, **fine})
            assert answer.status_code == 202, fine
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
                answer = await api.request(method, path, headers={**mine, **headers})
                assert answer.status_code == 403, headers
        # A service's key is no cookie.
        assert (await api.get("/api/jobs", headers={"cookie": f"session={KEY}"})).status_code == 401


async def test_keys_are_kept_hashed_revoked_at_once_and_two_live_side_by_side(
    api: httpx.AsyncClient, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.key_verification.KEY_CACHE_S", 0)
    first, second = await service_key(db, "jobs"), await service_key(db, "jobs")
    for key in (first, second):
        assert (await api.get("/api/jobs", headers=bearer(key))).status_code == 200
    async with db.connection() as connection:
        rows = str(await connection.fetch("select * from holdfast.service_keys"))
    assert first not in rows
    assert first[12:] not in rows
    admin = bearer(KEY)
    listed = (await api.get("/api/keys", headers=admin)).json()
    assert {key["prefix"] for key in listed} == {first[:11], second[:11]}
    assert all(key["last_used_at"] for key in listed)
    assert (await api.delete(f"/api/keys/{first[:11]}", headers=admin)).status_code == 204
    assert (await api.get("/api/jobs", headers=bearer(first))).status_code == 401
    assert (await api.get("/api/jobs", headers=bearer(second))).status_code == 200
    assert (await api.get("/api/jobs", headers=bearer(second[:-1]))).status_code == 401
    actions = [entry["action"] for entry in (await api.get("/api/audit", headers=admin)).json()]
    assert actions == ["key.revoke"]


async def test_a_key_cannot_give_what_it_has_not(api: httpx.AsyncClient, db: Database) -> None:
    maker = bearer(await service_key(db, "keys", "jobs"))
    fine = await api.post("/api/keys", json={"name": "x", "scopes": ["jobs"]}, headers=maker)
    assert fine.status_code == 201
    assert (await api.get("/api/jobs", headers=bearer(fine.json()["key"]))).status_code == 200
    for scopes in (["operate"], ["*"], ["jobs", "rpc"]):
        answer = await api.post("/api/keys", json={"name": "x", "scopes": scopes}, headers=maker)
        assert answer.status_code == 403
    assert (await api.post("/api/keys", json={"name": "x", "scopes": ["jobs"]}, headers=bearer(token()))
            ).status_code == 403  # fmt: skip
