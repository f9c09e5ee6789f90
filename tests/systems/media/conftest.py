"""The media system, installed and served on a port, and a website with media."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from api_clients import serve_app
from media_harness import MediaHarness, MediaSite, make_video_bytes
from web_servers import WebServer, run_web_server

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import media


@pytest.fixture
def site() -> MediaSite:
    return MediaSite(make_video_bytes())


@pytest.fixture
async def website(site: MediaSite) -> AsyncGenerator[WebServer]:
    async with run_web_server(site.respond) as server:
        yield server


@pytest.fixture
def media_settings(system_settings: Settings, website: WebServer) -> Settings:
    return replace(
        system_settings,
        egress_allow=website.authority,
        media_retry_delay=timedelta(milliseconds=50),
        media_idle_timeout=timedelta(seconds=5),
    )


@pytest.fixture
async def media_system(url: Secret, media_settings: Settings) -> AsyncGenerator[MediaHarness]:
    """The media system. No worker runs until the test starts one."""
    async with Database(url, media_settings) as db:
        async with db.connection() as connection:
            await media.install(connection)
        app = create_app(media_settings, database=db, **media.mount())
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield MediaHarness(db, http)
