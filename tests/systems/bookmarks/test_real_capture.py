"""Complete a bookmark of a local site with the real browser, the guarded HTTP client and OCR."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from api_clients import bearer_headers, serve_app
from bookmarks_harness import ADD_PATH, CONSUMER_PATH
from chromium import find_chromium
from page_site import make_image, run_page_site
from system_harness import SERVICE_KEY, SystemUser

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import bookmarks

PAGE = """<!doctype html><html><head><title>A harbour</title>
<meta name="description" content="Ships and ropes">
<meta property="og:image" content="/og.png"><link rel="icon" href="/icon.png" sizes="64x64">
</head><body><article><h1>A harbour</h1><p>%s</p></article></body></html>"""


@pytest.mark.timeout(300)
async def test_a_page_becomes_a_complete_bookmark(url: Secret, system_settings: Settings) -> None:
    find_chromium()  # skips without a browser
    async with run_page_site() as site:
        page_url = site.add("/", PAGE % ("The ships lie in the harbour and wait for the wind. " * 20))
        site.add("/og.png", make_image(text="HARBOUR"), "image/png")
        site.add("/icon.png", make_image(64, 64), "image/png")
        settings = replace(
            system_settings, egress_allow=site.server.authority, api_timeout=timedelta(minutes=4)
        )
        async with Database(url, settings) as db:
            async with db.connection() as connection:
                await bookmarks.install(connection)
            app = create_app(settings, database=db, **bookmarks.mount())
            async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=280) as http:
                ann = SystemUser(http)
                row = (await ann.post(ADD_PATH, {"url": page_url})).json()
                refused = (await ann.post(ADD_PATH, {"url": "http://127.0.0.1:1/"})).json()
                summary = (await http.post(CONSUMER_PATH, headers=bearer_headers(SERVICE_KEY))).json()
                assert (summary["processedCount"], summary["archivedCount"]) == (2, 1), summary
                done = (await ann.get(f"/api/v1/bookmarks/{row['id']}")).json()
                failed = (await ann.get(f"/api/v1/bookmarks/{refused['id']}")).json()
                screenshot = await http.get(done["screenshot"])
                matches = (await ann.get("/api/v1/bookmarks", params={"q": "ships wind"})).json()
    assert (done["status"], done["title"], done["description"]) == (
        "complete",
        "A harbour",
        "Ships and ropes",
    )
    assert "HARBOUR" in (done["ocr"] or "").upper()
    assert done["blurhash"]
    assert done["caption"]
    assert done["favicon"] is not None
    assert (screenshot.headers["content-type"], screenshot.content[8:12]) == ("image/webp", b"WEBP")
    assert [each["id"] for each in matches["bookmarks"]] == [row["id"]]
    assert (failed["status"], failed["screenshot_status"]) == ("failed", "failed")
