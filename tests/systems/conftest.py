"""The export system and the report system, each installed and served on a port."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_clients import ISSUER, SECRET, serve_app
from system_harness import SERVICE_KEY, SystemHarness

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports, reports


@pytest.fixture
def system_settings(settings: Settings, tmp_path: Path) -> Settings:
    return replace(
        settings,
        home=tmp_path,
        service_key=Secret(SERVICE_KEY),
        jwt_secret=Secret(SECRET),
        jwt_issuer=ISSUER,
        signing_key=Secret("a signing key for the tests of the systems"),
        api_rate=100_000,
        api_burst=100_000,
        rpc_schemas="holdfast,pgmq_public,public",
    )


@asynccontextmanager
async def serve_system(url: Secret, settings: Settings, system: Any) -> AsyncGenerator[SystemHarness]:
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            await system.install(connection)
        app = create_app(settings, database=db, **system.mount())
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield SystemHarness(db, http, address, system.tasks)


@pytest.fixture
async def exports_system(url: Secret, system_settings: Settings) -> AsyncGenerator[SystemHarness]:
    """Document export. No worker runs until the test starts one."""
    async with serve_system(url, system_settings, exports) as harness:
        yield harness


@pytest.fixture
async def reports_system(url: Secret, system_settings: Settings) -> AsyncGenerator[SystemHarness]:
    """Reports. No worker runs until the test starts one."""
    async with serve_system(url, system_settings, reports) as harness:
        yield harness
