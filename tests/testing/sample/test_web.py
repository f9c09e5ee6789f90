"""An application that was created at import time uses the database of each test; all of these pass."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
import shop
import web

from holdfast.server import create_app
from holdfast.testing import Holdfast

PROCESS_URL = os.environ["DATABASE_URL"]


@pytest_asyncio.fixture
async def http(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=web.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as http:
        yield http


@pytest.mark.asyncio
@pytest.mark.parametrize("round_number", [1, 2])  # the second uses another database and another event loop
async def test_files_are_saved_and_read_in_the_home_of_the_test(
    hf: Holdfast, http: httpx.AsyncClient, round_number: int
) -> None:
    link = (await http.post("/invoices", content=b"42")).json()["link"]
    assert (await http.get(link)).content == b"42"
    [file] = await hf.client.files.list()
    assert await hf.client.files.read(file) == b"42"
    assert shop.client.settings.home == hf.client.settings.home


@pytest.mark.asyncio
async def test_the_api_reads_the_database_of_the_test(hf: Holdfast, http: httpx.AsyncClient) -> None:
    assert (await http.get("/readyz")).status_code == 200
    assert web.api.state.holdfast.database.url.reveal() == hf.url


@pytest.mark.asyncio
async def test_an_application_created_in_the_test_uses_its_database(hf: Holdfast) -> None:
    api = create_app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://shop.test") as http:
        assert (await http.get("/readyz")).status_code == 200


def test_without_the_fixture_the_application_has_its_own_database_again() -> None:
    assert web.api.state.holdfast.database.url.reveal() == PROCESS_URL
    assert shop.client.settings.database_url.reveal() == PROCESS_URL
