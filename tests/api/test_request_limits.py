"""Limits of requests: size, depth, time, rate, origin; and errors that reveal nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from api_clients import bearer_headers, make_token, serve_app
from book_app import SERVICE_KEY, book_job
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast import telemetry
from holdfast.engine.connection import Connection, Database
from holdfast.server import create_app
from holdfast.server.api.app import build_openapi_document
from holdfast.server.api.rate_limit import RateLimiter
from holdfast.settings import Settings

ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)


@asynccontextmanager
async def open_client(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client


async def test_a_body_above_the_limit_gets_413(api: httpx.AsyncClient) -> None:
    async def send_slowly() -> AsyncGenerator[bytes]:
        for _ in range(40):
            yield b" " * 65_536

    for content in (b" " * 2_000_000, send_slowly()):
        response = await api.post("/api/jobs/start", content=content, headers=ANN)
        assert (response.status_code, response.json()["field"]) == (413, "body")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("[" * 40 + "]" * 40, 422),
        ('{"a":' * 33 + "1" + "}" * 33, 422),
        ("[" * 900_000, 422),
        ("{", 422),
        ("nothing", 422),
        ('{"type": "book", "params": {"title": "\\u0000"}}', 422),
        ('{"type": "book", "params": {"title": "\\ud800"}}', 422),
        ('{"type": "book", "params": {"count": 1e999}}', 422),
        ('{"type": "book", "params": ' + '{"a":' * 20 + "1" + "}" * 20 + "}", 202),
        ('{"type": "book"}' + " " * 1000, 202),
        ('"book"', 422),
        ("[]", 422),
    ],
)
async def test_unusual_bodies(api: httpx.AsyncClient, body: str, status: int) -> None:
    response = await api.post("/api/jobs/start", content=body, headers=ANN)
    assert response.status_code == status, response.text


async def test_other_media_types_get_415(api: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        response = await api.post("/api/jobs/start", content="{}", headers={**ANN, "content-type": kind})
        assert response.status_code == 415


async def test_a_body_that_arrives_too_slowly_gets_408(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.request_parsing.MAX_BODY_READ_TIME_S", 0.2)
    never = asyncio.Event()

    async def stall() -> AsyncGenerator[bytes]:
        yield b"{"
        await never.wait()

    response = await api.post("/api/jobs/start", content=stall(), headers=ANN)
    assert response.status_code == 408


async def test_slow_requests_time_out_but_started_responses_continue(
    db: Database, api_settings: Settings
) -> None:
    async def slow(_: Request) -> Response:
        await asyncio.Event().wait()
        return Response()

    async def broken(_: Request) -> Response:
        raise RuntimeError("select secret from hunter2")

    async def streaming(_: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes]:
            yield b"begun, "
            await asyncio.sleep(2.5)  # longer than the time limit of requests
            yield b"ended"

        return StreamingResponse(pieces())

    app = create_app(
        replace(api_settings, api_timeout=timedelta(seconds=2)),
        database=db,
        routes=[Route("/slow", slow), Route("/broken", broken), Route("/streaming", streaming)],
    )
    async with serve_app(app) as base, httpx.AsyncClient(base_url=base, timeout=60) as web:
        assert (await web.get("/slow")).status_code == 503
        assert (await web.get("/streaming")).text == "begun, ended"
        response = await web.get("/broken")
        assert response.status_code == 500
        assert "hunter2" not in response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_each_caller_has_its_own_rate_limit(db: Database, api_settings: Settings) -> None:
    app = create_app(api_settings, database=db, job_types=[book_job])
    app.state.holdfast.rate_limiter = RateLimiter(
        0.001, 5
    )  # refills so slowly that the duration of the test does not matter
    async with open_client(app) as api:
        statuses = [(await api.get("/api/jobs", headers=ANN)).status_code for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        rejected = await api.get("/api/jobs", headers=ANN)
        assert int(rejected.headers["retry-after"]) >= 1
        assert (await api.get("/api/jobs", headers=BOB)).status_code == 200
        assert (await api.get("/api/jobs", headers=SERVICE)).status_code == 200
        unauthenticated = [
            (await api.get("/api/jobs", headers=bearer_headers("x"))).status_code for _ in range(7)
        ]
        assert unauthenticated == [401] * 5 + [429] * 2
        assert (await api.get("/healthz")).status_code == 200


async def test_other_origins_are_allowed_only_if_configured(db: Database, api_settings: Settings) -> None:
    preflight = {"origin": "https://app.test", "access-control-request-method": "POST"}
    async with open_client(create_app(api_settings, database=db)) as api:
        response = await api.options("/api/jobs/start", headers=preflight)
        assert "access-control-allow-origin" not in response.headers
        assert "access-control-allow-origin" not in (await api.get("/healthz", headers=preflight)).headers
    app = create_app(replace(api_settings, cors_origins="https://app.test"), database=db)
    async with open_client(app) as api:
        response = await api.options("/api/jobs/start", headers=preflight)
        assert response.headers["access-control-allow-origin"] == "https://app.test"
        assert "access-control-allow-credentials" not in response.headers
        # Every method of the API can be called from an allowed origin.
        for path, operations in build_openapi_document()["paths"].items():
            for method in operations:
                headers = {**preflight, "access-control-request-method": method.upper()}
                assert (await api.options(path, headers=headers)).status_code == 200, (method, path)
        other = await api.options("/api/jobs/start", headers={**preflight, "origin": "https://evil.test"})
        assert "access-control-allow-origin" not in other.headers


CANARIES = [
    f"canary-{number}-{word}" for number in range(10) for word in ("token", "pass", "key", "sql", "arg")
]


async def test_no_secret_appears_in_events_logs_or_responses(
    api: httpx.AsyncClient, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[str] = []
    caplog.set_level("DEBUG", "holdfast")
    with telemetry.subscription(lambda name, fields: events.append(f"{name} {fields}")):
        for canary in CANARIES:
            await api.get("/api/jobs", headers=bearer_headers(canary))
            await api.get("/api/jobs", headers={"apikey": f"hf_{canary}"})
            await api.get(f"/api/jobs/{canary.encode().hex()[:32].ljust(32, '0')}/events?ticket={canary}")
            await api.get(f"/files/{canary}")
            body: dict[str, Any] = {"type": "book", "params": {"title": canary, "count": "x"}}
            await api.post("/api/jobs/start", json=body, headers=ANN)
        await conn.execute("drop function holdfast.get_job(uuid)")
        broken = await api.get(f"/api/jobs/{'0' * 32}", headers=ANN)
    assert broken.status_code == 503
    assert "get_job" not in broken.text
    log_messages = [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
    output = "\n".join(events + log_messages)
    assert [canary for canary in CANARIES if canary in output] == []
    assert make_token("ann") not in output


async def test_operator_actions_are_in_the_audit_log(api: httpx.AsyncClient) -> None:
    await api.post("/api/queues/q/pause", json={"reason": "tests", "allow_new": True}, headers=SERVICE)
    await api.post("/api/queues/q/resume", headers=SERVICE)
    await api.put("/api/limits/one", json={"max_running": 1}, headers=SERVICE)
    await api.delete("/api/limits/one", headers=SERVICE)
    await api.delete("/api/limits/one", headers=SERVICE)
    entries = (await api.get("/api/audit", headers=SERVICE)).json()
    assert [entry["action"] for entry in entries] == [
        "limit.delete", "limit.put", "queue.resume", "queue.pause",
    ]  # fmt: skip
    assert {entry["actor"] for entry in entries} == {"service:settings"}
    assert entries[-1]["detail"] == {"reason": "tests"}
    assert (await api.get(f"/api/audit?before={entries[1]['id']}&limit=1", headers=SERVICE)).json() == [
        entries[2]
    ]
    assert (await api.get("/api/audit", headers=ANN)).status_code == 403


async def test_two_users_on_pooled_connections_never_see_each_other(api: httpx.AsyncClient) -> None:
    """Interleave requests and failed ones: local settings must end with their transaction."""
    for headers in (ANN, BOB):
        await api.post("/api/jobs/start", json={"type": "book"}, headers=headers)

    async def list_own_jobs(number: int) -> None:
        user = ("ann", "bob")[number % 2]
        headers = (ANN, BOB)[number % 2]
        if number % 7 == 0:
            await api.post("/api/jobs/start", json={"type": "no such"}, headers=headers)
        listed = await api.get("/api/jobs", headers=headers)
        assert {job["owner"] for job in listed.json()["jobs"]} == {user}

    await asyncio.gather(*(list_own_jobs(number) for number in range(300)))
