"""`holdfast[media]` from the wheel in an empty environment: API, page, worker and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from api_clients import ISSUER, SECRET, bearer_headers, make_token
from installed_holdfast import InstalledHoldfast, wait_for
from media_harness import SHARES_PATH, MediaSite, media_url
from pooler import free_port
from sample_media import make_mp4
from web_servers import run_web_server
from wheel_environments import build_wheel, create_environment

from holdfast.settings import Secret

OWNER = "7c1f7d3e-0000-4000-8000-00000000d00d"


@pytest.mark.timeout(900)
async def test_media_from_the_wheel(empty_url: Secret, tmp_path: Path) -> None:
    environment = create_environment(build_wheel(tmp_path), "media", tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    site = MediaSite(make_mp4(tmp_path / "film.mp4").read_bytes())
    async with run_web_server(site.respond) as website:
        holdfast = InstalledHoldfast(
            environment,
            folder,
            {
                "HOLDFAST_DATABASE_URL": empty_url.reveal(),
                "HOLDFAST_JWT_SECRET": SECRET,
                "HOLDFAST_JWT_ISSUER": ISSUER,
                "HOLDFAST_EGRESS_ALLOW": website.authority,
            },
        )
        code, output = await holdfast.run("migrate")
        assert code == 0, output
        share = await _share_and_finish(holdfast, media_url(website))
        statuses = [share[f"{name}_status"] for name in ("download", "processing", "transcript")]
        assert statuses == ["completed"] * 3, share
        code, output = await holdfast.run("doctor")
        lines = [line for line in output.splitlines() if line[6:].startswith("media ")]
        assert len(lines) == 6, output
        assert {line[:4].strip() for line in lines[:3]} == {"ok"}, output
        # The second start installs again, and the share is still there.
        assert (await _share_and_finish(holdfast, media_url(website)))["id"] == share["id"]


async def _share_and_finish(holdfast: InstalledHoldfast, url: str) -> dict[str, Any]:
    """Start the API and a worker, share the link, and return the finished share."""
    port = free_port()
    async with (
        holdfast.start("api", "--system", "media", "--port", str(port)) as read_api_log,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        headers = bearer_headers(make_token(OWNER))

        async def is_ready() -> bool:
            return (await http.get("/healthz")).status_code == 200

        await wait_for(is_ready, read_api_log)
        for path in ("/media", "/media/media.js", "/media/share_details.js", "/media/icon.svg"):
            assert (await http.get(path)).status_code == 200, path
        response = await http.post(SHARES_PATH, json={"url": url}, headers=headers)
        assert response.status_code in (200, 202), response.text
        async with holdfast.start("worker", "holdfast.systems.media") as read_worker_log:

            async def find_finished() -> dict[str, Any] | None:
                answer = await http.get(f"{SHARES_PATH}/{response.json()['id']}", headers=headers)
                share: dict[str, Any] = answer.json()
                return share if share["finished"] else None

            share: dict[str, Any] = await wait_for(find_finished, read_worker_log)
        for file in share["files"]:
            assert (await http.get(file["url"])).status_code == 200, file["name"]
        return share
