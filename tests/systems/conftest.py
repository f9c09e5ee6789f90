from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from callers import ISSUER, SECRET, served
from homes import KEY, House

from holdfast.engine.connection import Database
from holdfast.server.api import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports, reports


@pytest.fixture
def house_settings(settings: Settings, tmp_path: Path) -> Settings:
    return replace(
        settings,
        home=tmp_path,
        service_key=Secret(KEY),
        jwt_secret=Secret(SECRET),
        jwt_issuer=ISSUER,
        signing_key=Secret("a signing key for the tests of the systems"),
        api_rate=100_000,
        api_burst=100_000,
    )


@pytest.fixture
async def house(url: Secret, house_settings: Settings) -> AsyncGenerator[House]:
    """Document export, served on a port. No worker runs until the test starts one."""
    async with Database(url, house_settings) as db:
        async with db.connection() as connection:
            await exports.install(connection)
        app = create_app(house_settings, database=db, **exports.mount())
        async with served(app) as place, httpx.AsyncClient(base_url=place, timeout=60) as web:
            yield House(db, web, place, exports.tasks)


@pytest.fixture
async def bindery(url: Secret, house_settings: Settings) -> AsyncGenerator[House]:
    """Reports, served on a port. No worker runs until the test starts one."""
    async with Database(url, house_settings) as db:
        async with db.connection() as connection:
            await reports.install(connection)
        app = create_app(house_settings, database=db, **reports.mount())
        async with served(app) as place, httpx.AsyncClient(base_url=place, timeout=60) as web:
            yield House(db, web, place, reports.tasks)
