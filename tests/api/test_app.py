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

SERVICE_KEY = "hf_test_key"


@task
def echo_number(x: int) -> int:
    return x


@pytest.fixture
async def api(db: Database, settings: Settings) -> AsyncGenerator[httpx.AsyncClient]:
    app = create_app(replace(settings, service_key=Secret(SERVICE_KEY)), database=db)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {SERVICE_KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as api:
        yield api


async def test_health_and_readiness(api: httpx.AsyncClient) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok"}
    assert (await api.get("/readyz")).json() == {"status": "ready"}


@pytest.mark.parametrize("credential", ["Bearer expired.or.forged", "Basic eA==", "Bearer"])
async def test_public_routes_ignore_credentials(api: httpx.AsyncClient, credential: str) -> None:
    """A probe that sends an old token must not restart a healthy process."""
    for path in ("/healthz", "/readyz", "/api/openapi.json", "/api/docs"):
        response = await api.get(path, headers={"authorization": credential})
        assert response.status_code == 200, path
    assert (await api.get("/api/jobs", headers={"authorization": credential})).status_code == 401


async def test_a_service_reads_a_submitted_job(
    api: httpx.AsyncClient, db: Database, settings: Settings
) -> None:
    async with Client(db.url.reveal(), settings=settings) as client:
        job = await client.submit(echo_number(1))
    response = await api.get(f"/api/jobs/{job.id}")
    assert response.status_code == 200
    assert (response.json()["id"], response.json()["status"]) == (str(job.id), "queued")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", f"Basic {SERVICE_KEY}", SERVICE_KEY, "Bearer ünicode"]
)
async def test_requests_without_a_valid_key_get_401(api: httpx.AsyncClient, header: str) -> None:
    response = await api.get(f"/api/jobs/{uuid4()}", headers={b"authorization": header.encode()})
    assert response.status_code == 401
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_without_a_configured_key_every_request_gets_401(db: Database, settings: Settings) -> None:
    transport = httpx.ASGITransport(create_app(settings, database=db))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
        response = await api.get(f"/api/jobs/{uuid4()}", headers={"authorization": "Bearer "})
    assert response.status_code == 401


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/jobs/00000000-0000-7000-8000-000000000000", 404),
        ("/api/jobs/no-uuid", 422),
        ("/api/nothing", 404),
    ],
)
async def test_errors_are_problem_json(api: httpx.AsyncClient, path: str, status: int) -> None:
    response = await api.get(path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status


async def test_unsupported_methods_get_405(api: httpx.AsyncClient) -> None:
    assert (await api.post("/healthz")).status_code == 405


async def test_an_unavailable_database_gives_503_without_details(settings: Settings) -> None:
    async with Database(Secret("postgresql://me:hunter2@127.0.0.1:1/x"), settings) as unavailable:
        transport = httpx.ASGITransport(create_app(settings, database=unavailable))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
            assert (await api.get("/healthz")).status_code == 200
            response = await api.get("/readyz")
    assert response.status_code == 503
    assert "hunter2" not in response.text
    assert "127.0.0.1" not in response.text


async def test_readiness_fails_without_the_schema(empty_url: Secret, settings: Settings) -> None:
    async with Database(empty_url, settings) as empty:
        transport = httpx.ASGITransport(create_app(settings, database=empty))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
            assert (await api.get("/readyz")).status_code == 503


async def test_every_response_has_security_headers(api: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/api/nothing", f"/api/jobs/{uuid4()}"):
        headers = (await api.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
