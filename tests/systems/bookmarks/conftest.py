"""The bookmark system, installed and served on a port."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from api_clients import serve_app
from bookmarks_harness import CRON_SECRET, BookmarksHarness, ControlledCapture

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import bookmarks
from holdfast.systems.bookmarks.capture_port import BookmarkCapture


@pytest.fixture
async def system(url: Secret, system_settings: Settings) -> AsyncGenerator[BookmarksHarness]:
    """The bookmark system. No worker runs until the test starts one."""
    settings = replace(system_settings, cron_secret=Secret(CRON_SECRET))
    capture = ControlledCapture()

    @asynccontextmanager
    async def open_capture(_: Client) -> AsyncGenerator[BookmarkCapture]:
        yield capture

    async with Database(url, settings) as db:
        async with db.connection() as connection:
            await bookmarks.install(connection)
        app = create_app(settings, database=db, **bookmarks.mount(open_capture=open_capture))
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield BookmarksHarness(db, http, address, bookmarks.tasks, capture)
