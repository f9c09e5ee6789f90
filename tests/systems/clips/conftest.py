"""The clip system, installed and served on a port."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import httpx
import pytest
from api_clients import serve_app
from clips_harness import INGEST_SECRET, ClipsHarness

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import clips


@pytest.fixture
async def system(url: Secret, system_settings: Settings) -> AsyncGenerator[ClipsHarness]:
    """The clip system. No worker runs until the test starts one."""
    settings = replace(system_settings, clips_ingest_secret=Secret(INGEST_SECRET))
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            await clips.install(connection)
        app = create_app(settings, database=db, **clips.mount())
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield ClipsHarness(db, http, address, clips.tasks)
