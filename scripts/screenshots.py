"""Take screenshots of every dashboard page and of `/bookmarks` in light, dark and phone layouts, into `screenshots/`.

    make screenshots            all pages
    make screenshots ONLY=job   pages whose name contains "job"; ONLY=bookmarks for the page of users

The script starts a database and a server, creates sample data (tests/support/sample_dashboard_data.py),
and stops them at the end.
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
import uvicorn  # noqa: E402
from api_clients import ISSUER, SECRET, bearer_headers, make_token  # noqa: E402
from playwright.async_api import Browser, async_playwright  # noqa: E402
from sample_bookmarks import create_sample_bookmarks, paint_sample_pages, run_sample_worker  # noqa: E402
from sample_dashboard_data import create_sample_data, send_worker_heartbeats  # noqa: E402

from holdfast import settings as settings_module  # noqa: E402
from holdfast.engine import embedded, install  # noqa: E402
from holdfast.engine.connection import Database  # noqa: E402
from holdfast.server import create_app  # noqa: E402
from holdfast.server.dashboard import create_dashboard, create_login_link  # noqa: E402
from holdfast.settings import Secret, Settings  # noqa: E402
from holdfast.storage import open_store  # noqa: E402
from holdfast.systems import bookmarks  # noqa: E402

OUTPUT_DIR = ROOT / "screenshots"
CHROMIUM_PATH = subprocess.run(
    [ROOT / "scripts" / "chromium.sh", "--find"], capture_output=True, text=True, check=True
).stdout.strip()
SCREENSHOT_LAYOUTS = {
    "light": (1280, 900, "light"),
    "dark": (1280, 900, "dark"),
    "phone": (390, 844, "light"),
}
BOOKMARKS_LAYOUTS = {**SCREENSHOT_LAYOUTS, "phone-dark": (390, 844, "dark")}
BOOKMARKS_USER = "7d0c2f6e-0f0a-4f0e-9a51-1d2f0f4b8a11"


def build_page_paths(ids: dict[str, Any]) -> dict[str, str]:
    cause = "TimeoutError%20render.py%3Agoto"
    return {
        "overview": "/",
        "jobs": "/jobs",
        "jobs-failed": "/jobs?q=state:failed",
        "jobs-invalid-search": "/jobs?q=nosuch:1",
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
        "charts": "/charts?by=owner&span=6h",
        "charts-worker": "/charts?by=worker",
        "charts-name": "/charts?by=owner&name=acme&compare=day",
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
        "alerts": "/alerts",
        "alert-rules": "/alerts/rules",
        "database": "/database",
        "audit": "/audit",
        "sessions": "/sessions",
        "settings": "/settings",
        "missing": "/jobs/01920000-0000-7000-8000-000000000000",
    }


async def main(name_filter: str) -> None:
    OUTPUT_DIR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-pictures-") as home:
        Path(home).chmod(0o755)  # noqa: ASYNC240
        settings = settings_module.load_settings(
            {"home": home, "service_key": "hf_pictures", "jwt_secret": SECRET, "jwt_issuer": ISSUER},
            environ={},
        )
        server = embedded.start_server(settings)
        try:
            await install.migrate_database(server.url, settings)
            await take_screenshots(server.url, settings, name_filter)
        finally:
            server.release()
            embedded.stop_server(settings)


async def take_screenshots(url: Secret, settings: Settings, name_filter: str) -> None:
    connection = await asyncpg.connect(url.reveal())
    ids = await create_sample_data(connection, open_store(settings))
    async with (
        Database(url, settings) as database,
        serve_dashboard(database, settings) as base,
        async_playwright() as driver,
    ):
        browser = await driver.chromium.launch(executable_path=CHROMIUM_PATH, args=["--no-sandbox"])
        for layout, (width, height, scheme) in SCREENSHOT_LAYOUTS.items():
            if name_filter.startswith("bookmarks"):
                break
            await send_worker_heartbeats(connection)
            link = await create_login_link(connection, base)
            await screenshot_pages(browser, link, base, ids, (layout, width, height, scheme), name_filter)
        if "bookmarks".startswith(name_filter[:9]):
            await bookmarks.install(connection)
            await screenshot_bookmarks(browser, database, base.removesuffix("/dashboard"))
        await browser.close()
    await connection.close()


async def screenshot_bookmarks(browser: Browser, database: Database, base: str) -> None:
    """Take screenshots of the page of bookmarks: the list and the details of one."""
    async with run_sample_worker(database, await paint_sample_pages(browser)):
        await create_sample_bookmarks(base, bearer_headers(make_token(BOOKMARKS_USER)))
    for layout, (width, height, scheme) in BOOKMARKS_LAYOUTS.items():
        context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        page = await context.new_page()
        await page.goto(f"{base}/bookmarks#token={make_token(BOOKMARKS_USER)}", wait_until="load")
        await page.locator("li[data-status=complete] img.picture").first.wait_for()
        await page.wait_for_timeout(1000)
        await page.screenshot(path=OUTPUT_DIR / f"bookmarks-{layout}.png")
        await page.locator("li[data-status=complete] button.open").first.click()
        await page.locator("dialog img").first.wait_for()
        await page.wait_for_timeout(1000)
        await page.screenshot(path=OUTPUT_DIR / f"bookmarks-details-{layout}.png")
        print(f"bookmarks-{layout}.png, bookmarks-details-{layout}.png")
        await context.close()


async def screenshot_pages(
    browser: Browser,
    link: str,
    base: str,
    ids: dict[str, Any],
    layout: tuple[str, int, int, str],
    name_filter: str,
) -> None:
    layout_name, width, height, scheme = layout
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.goto(f"{base}/login")
    await page.screenshot(path=OUTPUT_DIR / f"login-{layout_name}.png")
    await page.goto(link)
    for name, path in build_page_paths(ids).items():
        if name_filter in name:
            await page.goto(base + path, wait_until="load")
            # The PDF viewer of the browser draws later.
            await page.wait_for_timeout(3000 if "pdf" in name else 50)
            await page.screenshot(path=OUTPUT_DIR / f"{name}-{layout_name}.png", full_page=True)
            print(f"{name}-{layout_name}.png")
    await context.close()


class ServerWithoutSignals(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Do nothing: the script stops the server."""


@contextlib.asynccontextmanager
async def serve_dashboard(database: Database, settings: Settings) -> Any:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = create_app(
        settings,
        database=database,
        dashboard=lambda services: create_dashboard(services, environment="demo"),
        **bookmarks.mount(),
    )
    server = ServerWithoutSignals(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{port}/dashboard"
    finally:
        server.should_exit = True
        await task


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
