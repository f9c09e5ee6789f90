"""Users have a limited number of unfinished batches, over HTTP and RPC, also when they ask at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import httpx
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY, book_job

from holdfast.engine.connection import Connection, Database
from holdfast.server import create_app
from holdfast.settings import Settings

MAX_BATCHES = 3
ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)


@pytest.fixture
async def limited_api(api_settings: Settings, db: Database) -> AsyncGenerator[httpx.AsyncClient]:
    settings = replace(api_settings, user_jobs=MAX_BATCHES)
    app = create_app(settings, database=db, job_types=[book_job])
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client,
    ):
        yield client


async def test_a_user_cannot_open_any_number_of_batches(
    limited_api: httpx.AsyncClient, conn: Connection
) -> None:
    async def open_over_http() -> httpx.Response:
        return await limited_api.post("/api/batches", json={"name": "mine"}, headers=ANN)

    async def open_over_rpc() -> httpx.Response:
        return await limited_api.post(
            "/rest/v1/rpc/open_batch", json={"p_name": "mine"}, headers={**ANN, "content-profile": "holdfast"}
        )

    responses = await asyncio.gather(
        *(open_() for open_ in (open_over_http, open_over_rpc) for _ in range(6))
    )
    refused = [response for response in responses if response.status_code >= 400]
    assert await conn.fetchval("select count(*) from holdfast.batches where owner = 'ann'") == MAX_BATCHES
    assert len(refused) == len(responses) - MAX_BATCHES
    texts = {response.text for response in refused}
    assert all("3 unfinished batches" in text for text in texts), texts
    assert (await limited_api.post("/api/batches", json={}, headers=BOB)).status_code == 201, "another user"
    assert (await limited_api.post("/api/batches", json={"owner": "ann"}, headers=SERVICE)).status_code == 201


async def test_a_closed_batch_makes_room(limited_api: httpx.AsyncClient) -> None:
    opened = [await limited_api.post("/api/batches", json={}, headers=ANN) for _ in range(MAX_BATCHES)]
    assert (await limited_api.post("/api/batches", json={}, headers=ANN)).status_code == 429
    batch = opened[0].json()["id"]
    assert (await limited_api.post(f"/api/batches/{batch}/close", headers=ANN)).status_code == 200
    assert (await limited_api.post("/api/batches", json={}, headers=ANN)).status_code == 201
