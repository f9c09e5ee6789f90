"""Pictures of every page of the dashboard: light, dark and phone, into `screenshots/`.

    make screenshots            all of them
    make screenshots ONLY=job   those whose name has this in it

Starts a database and a server of its own, fills them (tests/support/gallery.py), and ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import asyncpg  # noqa: E402
import gallery  # noqa: E402
import uvicorn  # noqa: E402
from playwright.async_api import Browser, async_playwright  # noqa: E402

from holdfast import settings as settings_module  # noqa: E402
from holdfast.engine import embedded, install  # noqa: E402
from holdfast.engine.connection import Database  # noqa: E402
from holdfast.server.api import create_app  # noqa: E402
from holdfast.server.dashboard import create_dashboard, login_link  # noqa: E402
from holdfast.settings import Secret, Settings  # noqa: E402
from holdfast.storage import open_store  # noqa: E402

OUT = ROOT / "screenshots"
CHROMIUM = subprocess.run(
    [ROOT / "scripts" / "chromium.sh", "--find"], capture_output=True, text=True, check=True
).stdout.strip()
LOOKS = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "phone": (390, 844, "light")}


def pages(ids: dict[str, Any]) -> dict[str, str]:
    cause = "TimeoutError%20render.py%3Agoto"
    return {
        "overview": "/",
        "jobs": "/jobs",
        "jobs-failed": "/jobs?q=state:failed",
        "jobs-wrong": "/jobs?q=nosuch:1",
        "job": f"/jobs/{ids['graph']}",
        "job-failed": f"/jobs/{ids['failed']}",
        "job-running": f"/jobs/{ids['running']}?tab=events",
        "job-payload": f"/jobs/{ids['failed']}?tab=payload",
        "job-tasks": f"/jobs/{ids['graph']}?tab=tasks",
        "job-files": f"/jobs/{ids['graph']}?tab=files",
        "rerun": f"/jobs/{ids['failed']}/rerun",
        "errors": "/errors",
        "error": f"/error?cause={cause}",
        "queues": "/queues",
        "queue": "/queue?name=browser",
        "queue-paused": "/queue?name=ai",
        "tasks": "/tasks",
        "task": "/task?name=screenshot",
        "messages": "/messages",
        "messages-clips": "/messages?queue=clips",
        "workers": "/workers",
        "worker": "/worker?name=worker-1",
        "schedules": "/schedules",
        "schedule-edit": "/schedules/edit?name=nightly-report",
        "bulks": "/bulk",
        "bulk-new": "/bulk/new?verb=retry&q=state:failed",
        "bulk": f"/bulk/{ids['bulk']}",
        "batch": f"/batches/{ids['batch']}",
        "files": "/files",
        "file-image": f"/files/{ids['files']['shot.png']}",
        "file-text": f"/files/{ids['files']['page.html']}",
        "file-pdf": f"/files/{ids['files']['report.pdf']}",
        "file-audio": f"/files/{ids['files']['voice.wav']}",
        "file-other": f"/files/{ids['files']['archive.zip']}",
        "limits": "/limits",
        "webhooks": "/webhooks",
        "database": "/database",
        "audit": "/audit",
        "settings": "/settings",
        "missing": "/jobs/01920000-0000-7000-8000-000000000000",
    }


async def main(only: str) -> None:
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-pictures-") as home:
        Path(home).chmod(0o755)  # noqa: ASYNC240
        settings = settings_module.load({"home": home, "service_key": "hf_pictures"}, environ={})
        server = embedded.start(settings)
        try:
            await install.migrate(server.url, settings)
            await taken(server.url, settings, only)
        finally:
            server.release()
            embedded.stop(settings)


async def taken(url: Secret, settings: Settings, only: str) -> None:
    connection = await asyncpg.connect(url.reveal())
    ids = await gallery.fill(connection, open_store(settings))
    async with (
        Database(url, settings) as database,
        served(database, settings) as base,
        async_playwright() as driver,
    ):
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for look, (width, height, scheme) in LOOKS.items():
            await gallery.beat(connection)
            link = await login_link(connection, base)
            await look_at(browser, link, base, ids, (look, width, height, scheme), only)
        await browser.close()
    await connection.close()


async def look_at(
    browser: Browser, link: str, base: str, ids: dict[str, Any], how: tuple[str, int, int, str], only: str
) -> None:
    look, width, height, scheme = how
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.goto(f"{base}/login")
    await page.screenshot(path=OUT / f"login-{look}.png")
    await page.goto(link)
    for name, path in pages(ids).items():
        if only in name:
            await page.goto(base + path, wait_until="load")
            await page.wait_for_timeout(
                3000 if "pdf" in name else 50
            )  # the viewer of the browser draws later
            await page.screenshot(path=OUT / f"{name}-{look}.png", full_page=True)
            print(f"{name}-{look}.png")
    await context.close()


class Quiet(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """The script ends it."""


@contextlib.asynccontextmanager
async def served(database: Database, settings: Settings) -> Any:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = create_app(
        settings, database=database, dashboard=lambda services: create_dashboard(services, environment="demo")
    )
    server = Quiet(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{port}/dashboard"
    finally:
        server.should_exit = True
        await task


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
