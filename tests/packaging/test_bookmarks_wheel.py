"""`holdfast[bookmarks]` from the wheel in an empty environment: API, worker and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from api_clients import ISSUER, SECRET, bearer_headers, make_token
from bookmarks_harness import ADD_PATH
from chromium import find_chromium
from installed_holdfast import InstalledHoldfast, wait_for
from page_site import make_image, run_page_site
from pooler import free_port
from wheel_environments import build_wheel, create_environment

from holdfast.settings import Secret

OWNER = "7c1f7d3e-0000-4000-8000-00000000b00c"
PAGE = """<title>From a wheel</title><meta property="og:image" content="/og.png">
<link rel="icon" href="/og.png"><p>Text</p>"""


@pytest.mark.timeout(900)
async def test_bookmarks_from_the_wheel(empty_url: Secret, tmp_path: Path) -> None:
    find_chromium()
    environment = create_environment(build_wheel(tmp_path), "bookmarks", tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    async with run_page_site() as site:
        page = site.add("/", PAGE)
        site.add("/og.png", make_image(text="WHEEL"), "image/png")
        holdfast = InstalledHoldfast(
            environment,
            folder,
            {
                "HOLDFAST_DATABASE_URL": empty_url.reveal(),
                "HOLDFAST_JWT_SECRET": SECRET,
                "HOLDFAST_JWT_ISSUER": ISSUER,
                "HOLDFAST_EGRESS_ALLOW": site.server.authority,
            },
        )
        code, output = await holdfast.run("migrate")
        assert code == 0, output
        code, output = await holdfast.run("worker", "holdfast.systems.bookmarks")
        assert (code, "The bookmark system is not installed" in output) == (1, True), output
        row = await _add_and_complete(holdfast, page)
        code, output = await holdfast.run("doctor")
        assert "starts in its sandbox" in output, output
        assert "OCR can be loaded" in output
        # The second start installs again, and the bookmark is still there.
        assert (await _add_and_complete(holdfast, page))["id"] == row["id"]


async def _add_and_complete(holdfast: InstalledHoldfast, page: str) -> dict[str, Any]:
    """Start the API and a worker, add the page, and return its complete bookmark."""
    port = free_port()
    async with (
        holdfast.start("api", "--system", "bookmarks", "--port", str(port)) as read_api_log,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        headers = bearer_headers(make_token(OWNER))

        async def is_ready() -> bool:
            return (await http.get("/healthz")).status_code == 200

        await wait_for(is_ready, read_api_log)
        response = await http.post(ADD_PATH, json={"url": page}, headers=headers)
        assert response.status_code == 200, response.text
        async with holdfast.start("worker", "holdfast.systems.bookmarks") as read_worker_log:

            async def find_complete() -> dict[str, Any] | None:
                answer = await http.get(f"/api/v1/bookmarks/{response.json()['id']}", headers=headers)
                row: dict[str, Any] = answer.json()
                return row if row["status"] == "complete" else None

            row: dict[str, Any] = await wait_for(find_complete, read_worker_log)
        assert (row["title"], row["ocr"]) == ("From a wheel", "WHEEL")
        for name in ("screenshot", "og_image", "favicon"):
            assert (await http.get(row[name])).status_code == 200, name
        return row
