"""`holdfast[clips]` from the wheel in an empty environment: API, page, worker, search and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from api_clients import ISSUER, SECRET, bearer_headers, make_token
from clips_harness import CLIPS_PATH
from installed_holdfast import InstalledHoldfast, wait_for
from media_site import run_media_site
from pooler import free_port
from sample_media import make_mp4
from wheel_environments import build_wheel, create_environment

from holdfast.settings import Secret

OWNER = "7c1f7d3e-0000-4000-8000-00000000c11b"
VTT = "WEBVTT\n\n00:00:01.000 --> 00:00:03.000\nSharpen the knife on a wet stone.\n"
PAGE = (
    '<title>Knives</title><video src="/film.mp4"><track kind="captions" src="/film.vtt" srclang="en"></video>'
)


@pytest.mark.timeout(900)
async def test_clips_from_the_wheel(empty_url: Secret, tmp_path: Path) -> None:
    environment = create_environment(build_wheel(tmp_path), "clips", tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    async with run_media_site() as site:
        site.add("/film.mp4", "video/mp4", make_mp4(tmp_path / "film.mp4").read_bytes())
        site.add("/film.vtt", "text/vtt", VTT)
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
        for command in (("migrate",), ("install", "clips")):
            code, output = await holdfast.run(*command)
            assert code == 0, output
        await _add_and_search(holdfast, site.add("/knives.html", "text/html", PAGE))
        code, output = await holdfast.run("doctor")
        lines = [line for line in output.splitlines() if line[6:].startswith("clips ")]
        assert {line[:4].strip() for line in lines} == {"ok"}, output
        assert any("pgvector" in line for line in lines), output


async def _add_and_search(holdfast: InstalledHoldfast, url: str) -> None:
    port = free_port()
    async with (
        holdfast.start("api", "--system", "clips", "--port", str(port)) as read_api_log,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        headers = bearer_headers(make_token(OWNER))

        async def is_ready() -> bool:
            return (await http.get("/healthz")).status_code == 200

        await wait_for(is_ready, read_api_log)
        for path in ("/clips", "/clips/clips.js", "/clips/clip_details.js", "/clips/icon.svg"):
            assert (await http.get(path)).status_code == 200, path
        added = (await http.post(CLIPS_PATH, json={"video_url": url}, headers=headers)).json()
        async with holdfast.start("worker", "holdfast.systems.clips") as read_worker_log:

            async def find_finished() -> dict[str, Any] | None:
                clip: dict[str, Any] = (await http.get(f"{CLIPS_PATH}/{added['id']}", headers=headers)).json()
                return clip if clip["processing_status"] in ("done", "failed") else None

            clip: dict[str, Any] = await wait_for(find_finished, read_worker_log)
        assert (clip["processing_status"], clip["transcript_by"]) == ("done", "captions"), clip
        answer = await http.get(f"{CLIPS_PATH}/search", params={"q": "sharp blades"}, headers=headers)
        assert [hit["start_s"] for hit in answer.json()["hits"]] == [1], answer.text
