"""User tokens: valid tokens are accepted and more than sixty kinds of forged tokens are rejected."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from api_clients import bearer_headers, create_service_key, make_claims, make_token
from book_app import SERVICE_KEY, book_job
from cryptography.hazmat.primitives.asymmetric import rsa
from forged_tokens import EC, ED, OTHER_RSA, RSA, encode_base64url, jwk, make_forged_tokens, make_hs256_token

from holdfast.engine.connection import Database
from holdfast.errors import SettingsError
from holdfast.server import create_app
from holdfast.server.api.token_verification import TokenVerifier
from holdfast.settings import Secret, Settings

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


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "a\ud800"},
        {"sub": "a\0b"},
        {"sub": "a\u202eb"},
        {"email": "a\ud800"},
        {"email": "a\0"},
        {"app_metadata": {"a\0": [1]}},
        {"app_metadata": {"\udfff": [1]}},
        {"name": "x" * 20_000},
    ],
    ids=ascii,
)
async def test_signed_claims_that_postgresql_cannot_store_get_401(
    api: httpx.AsyncClient, claims: dict[str, Any]
) -> None:
    for path in ("/api/jobs", "/api/webhooks"):
        response = await api.get(path, headers=bearer_headers(make_hs256_token(**claims)))
        assert response.status_code == 401, response.text


async def test_claims_with_unusual_but_valid_text_are_accepted(api: httpx.AsyncClient) -> None:
    token = make_hs256_token(sub="ånn 日本", email="a\\u0000b", big=2**70, real=1e308, deep=[[[{}]]])
    assert (await api.get("/api/jobs", headers=bearer_headers(token))).status_code == 200


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
    monkeypatch.setattr("holdfast.server.api.token_verification.TOKEN_CACHE_LIFETIME_S", 0)
    assert (await api.get("/api/jobs", headers=old)).status_code == 401
    key_set_file.write_text("{")  # an invalid key set does not replace the known one
    assert (await api.get("/api/jobs", headers=new)).status_code == 200


@pytest.mark.parametrize(("kind", "verified_again"), [("HS256", False), ("RS256", True)])
async def test_only_tokens_of_the_secret_are_believed_for_a_minute(
    api_settings: Settings,
    key_set_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    verified_again: bool,
) -> None:
    verifier = TokenVerifier(replace(api_settings, jwt_jwks=str(key_set_file)))
    token = VALID_TOKEN_FACTORIES[kind]()
    claims = await verifier.verify_token(token)
    calls: list[str] = []
    decode = jwt.decode

    def count_and_decode(*args: Any, **options: Any) -> dict[str, Any]:
        calls.append("decode")
        return decode(*args, **options)

    monkeypatch.setattr(jwt, "decode", count_and_decode)
    for age_s, again in ((0.0, False), (2.0, verified_again), (61.0, True)):
        calls.clear()
        cached = verifier._cache[token]
        verifier._cache[token] = replace(cached, verified_at=time.monotonic() - age_s)
        assert await verifier.verify_token(token) == claims
        assert bool(calls) == again


async def test_cached_token_ends_when_it_expires_or_the_clock_is_set_back(
    api_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, now = TokenVerifier(api_settings), time.time()
    token = make_hs256_token(exp=int(now) + 30)
    await verifier.verify_token(token)
    cached = verifier._cache[token]
    assert cached.is_valid()
    for moment in (now + 31, now - 60):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        assert not cached.is_valid()


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
