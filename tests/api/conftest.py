from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import httpx
import pytest
from api_clients import ISSUER, SECRET
from book_app import SERVICE_KEY, book_job, internal_job
from starlette.applications import Starlette

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings


@pytest.fixture
def api_settings(settings: Settings) -> Settings:
    return replace(
        settings,
        service_key=Secret(SERVICE_KEY),
        jwt_secret=Secret(SECRET),
        jwt_issuer=ISSUER,
        api_rate=100_000,
        api_burst=100_000,
    )


@pytest.fixture
def app(db: Database, api_settings: Settings) -> Starlette:
    return create_app(api_settings, database=db, job_types=[book_job, internal_job])


@pytest.fixture
async def api(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    """A client that calls the application directly, without a port and without a token."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client
    await app.state.holdfast.close()
