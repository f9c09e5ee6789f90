"""A page site, the browser pool, the guarded client and the decoder, all real."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from chromium import find_chromium
from page_site import PageSite, run_page_site

from holdfast.egress import EgressClient
from holdfast.systems.capture import BrowserOptions, BrowserPool, MediaDecoder


@pytest.fixture
async def site() -> AsyncGenerator[PageSite]:
    async with run_page_site() as page_site:
        yield page_site


@pytest.fixture
async def egress(site: PageSite) -> AsyncGenerator[EgressClient]:
    async with EgressClient(site.policy) as client:
        yield client


@pytest.fixture
async def decoder() -> AsyncGenerator[MediaDecoder]:
    async with MediaDecoder() as media_decoder:
        yield media_decoder


@pytest.fixture
def options() -> BrowserOptions:
    assert Path(find_chromium()).exists()
    return BrowserOptions()


@pytest.fixture
async def browsers(site: PageSite, options: BrowserOptions) -> AsyncGenerator[BrowserPool]:
    async with BrowserPool(site.policy, options) as pool:
        yield pool
