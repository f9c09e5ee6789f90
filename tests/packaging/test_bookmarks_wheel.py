"""`holdfast[bookmarks]` from the wheel in an empty environment: API, worker and doctor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_clients import ISSUER, SECRET, bearer_headers, make_token
from bookmarks_harness import ADD_PATH
from chromium import find_chromium
from page_site import make_image, run_page_site
from pooler import free_port
from wheel_environments import build_wheel, create_environment

from holdfast.settings import Secret
from holdfast.testing import wait_until

OWNER = "7c1f7d3e-0000-4000-8000-00000000b00c"
PAGE = """<title>From a wheel</title><meta property="og:image" content="/og.png">
<link rel="icon" href="/og.png"><p>Text</p>"""
WAIT_TIMEOUT = timedelta(minutes=4)


class InstalledHoldfast:
    """The command `holdfast` of the environment, in an empty folder."""

    def __init__(self, environment: Path, folder: Path, variables: dict[str, str]) -> None:
        self.program = environment / "bin" / "holdfast"
        self.folder = folder
        self.variables = {"PATH": os.defpath, "HOME": str(folder), **variables}

    async def run(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            self.program,
            *arguments,
            cwd=self.folder,
            env=self.variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    @asynccontextmanager
    async def start(self, *arguments: str) -> AsyncGenerator[Callable[[], str]]:
        """Run a command until the end of the block, and yield a function that reads its output."""
        path = self.folder / f"{arguments[0]}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                self.program, *arguments, cwd=self.folder, env=self.variables, stdout=log, stderr=log
            )
        try:
            yield path.read_text
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def wait_for(what: Callable[[], Awaitable[Any]], read_log: Callable[[], str]) -> Any:
    async def check() -> Any:
        try:
            return await what()
        except httpx.TransportError:
            return None

    try:
        return await wait_until(check, within=WAIT_TIMEOUT)
    except AssertionError as error:
        raise AssertionError(read_log()[-3000:]) from error


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
