"""The clip system, installed and served on a port."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import httpx
import pytest
from api_clients import serve_app
from clip_providers import ClipProviders
from clips_harness import INGEST_SECRET, ClipsHarness
from provider_server import ProviderServer, run_provider_server

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import clips

PRICES = '{"gpt-5-mini": {"tokens_in": 1, "tokens_out": 2}, "scrapecreators": {"request": 0.002}}'


@pytest.fixture
def answers() -> ClipProviders:
    """What the providers answer."""
    return ClipProviders()


@pytest.fixture
async def server(answers: ClipProviders) -> AsyncGenerator[ProviderServer]:
    """A server that speaks the protocols of the remote providers."""
    async with run_provider_server() as server:
        answers.attach(server)
        yield server


@pytest.fixture
async def system(
    url: Secret, system_settings: Settings, server: ProviderServer
) -> AsyncGenerator[ClipsHarness]:
    """The clip system with remote providers. No worker runs until the test starts one."""
    address = server.url.removesuffix("/v1")
    settings = replace(
        system_settings,
        clips_ingest_secret=Secret(INGEST_SECRET),
        egress_allow="127.0.0.1",
        scraping_url=address,
        text_url=server.url,
        embeddings_url=server.url,
        clips_sources="scraping",
        provider_prices=PRICES,
    )
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            await clips.install(connection)
        app = create_app(settings, database=db, **clips.mount())
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield ClipsHarness(db, http, address, clips.tasks)
