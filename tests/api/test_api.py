from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest

from holdfast import Client, task
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings

KEY = "hf_test_key"


@task
def work(x: int) -> int:
    return x


@pytest.fixture
async def api(db: Database, settings: Settings) -> AsyncGenerator[httpx.AsyncClient]:
    app = create_app(replace(settings, service_key=Secret(KEY)), database=db)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as api:
        yield api


async def test_health_and_readiness(api: httpx.AsyncClient) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok"}
    assert (await api.get("/readyz")).json() == {"status": "ready"}


async def test_a_job_is_shown_as_the_engine_knows_it(
    api: httpx.AsyncClient, db: Database, settings: Settings
) -> None:
    async with Client(db.url.reveal(), settings=settings) as client:
        job = await client.submit(work(1))
    answer = await api.get(f"/api/jobs/{job.id}")
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["status"]) == (str(job.id), "queued")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, "Bearer ünicode"])
async def test_nobody_gets_in_without_the_key(api: httpx.AsyncClient, header: str) -> None:
    answer = await api.get(f"/api/jobs/{uuid4()}", headers={b"authorization": header.encode()})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_without_a_configured_key_everything_is_closed(db: Database, settings: Settings) -> None:
    transport = httpx.ASGITransport(create_app(settings, database=db))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
        answer = await api.get(f"/api/jobs/{uuid4()}", headers={"authorization": "Bearer "})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/jobs/00000000-0000-7000-8000-000000000000", 404),
        ("/api/jobs/no-uuid", 422),
        ("/api/nothing", 404),
    ],
)
async def test_problems_are_problem_json(api: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await api.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status


async def test_wrong_methods_are_refused(api: httpx.AsyncClient) -> None:
    assert (await api.post("/healthz")).status_code == 405


async def test_a_database_that_is_away_is_503_and_tells_strangers_nothing(settings: Settings) -> None:
    async with Database(Secret("postgresql://me:hunter2@127.0.0.1:1/x"), settings) as away:
        transport = httpx.ASGITransport(create_app(settings, database=away))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
            assert (await api.get("/healthz")).status_code == 200
            answer = await api.get("/readyz")
    assert answer.status_code == 503
    assert "hunter2" not in answer.text
    assert "127.0.0.1" not in answer.text


async def test_a_missing_schema_is_not_ready(empty_url: Secret, settings: Settings) -> None:
    async with Database(empty_url, settings) as empty:
        transport = httpx.ASGITransport(create_app(settings, database=empty))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
            assert (await api.get("/readyz")).status_code == 503


async def test_every_answer_carries_the_safe_headers(api: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/api/nothing", f"/api/jobs/{uuid4()}"):
        headers = (await api.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
