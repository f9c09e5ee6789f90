"""The system of the template: fewer than 150 lines, public names only, mounted beside a bundled system."""

from __future__ import annotations

import asyncio
import csv
import importlib
import io
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from api_clients import make_token, serve_app
from chromium import CHROMIUM_OPTIONS, find_chromium
from playwright.async_api import async_playwright, expect
from system_harness import SystemHarness, SystemUser

from holdfast import Client
from holdfast.cli.root import run_command_line
from holdfast.devtools.init import TEMPLATES_FOLDER
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports, mount
from holdfast.testing import wait_until
from holdfast.worker.runtime import WorkerRuntime

SCREENSHOT_FOLDER = os.environ.get("HOLDFAST_SHOTS")  # optional: where to save screenshots
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "build-a-system.md"
TEMPLATE = TEMPLATES_FOLDER / "system" / "contacts"
CONTACTS = 'name,email\nAnn,ann@example.com\nBo,\n,bo@example.com\n"Cy, Jr.", CY@Example.com \n'


@pytest.fixture
def contacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of a project that `holdfast init --template system` created."""
    assert run_command_line(["init", str(tmp_path / "project"), "--template", "system"]) == 0
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    sys.modules.pop("contacts", None)
    return importlib.import_module("contacts")


@pytest.fixture
async def site(contacts: Any, url: Secret, system_settings: Settings) -> AsyncGenerator[SystemHarness]:
    async with Database(url, system_settings) as db:
        async with db.connection() as connection:
            for _ in range(2):
                await contacts.install_if_needed(connection, system_settings.systems_schema)
            await exports.install(connection)
        app = create_app(system_settings, database=db, **mount(contacts, exports))
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield SystemHarness(db, http, address, [contacts.import_contacts])


@asynccontextmanager
async def run_contacts_worker(site: SystemHarness) -> AsyncGenerator[None]:
    async with Client(site.db.url.reveal(), settings=site.db.settings) as client:
        tasks = {task.name: task for task in site.tasks}
        worker = WorkerRuntime(site.db, tasks, state=client, grace=timedelta(0))
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        try:
            yield
        finally:
            stop.set()
            await running


async def import_csv(user: SystemUser, text: str | bytes) -> dict[str, Any]:
    """Upload a file, wait until its job has ended, and return the job."""
    response = await user.http.post("/api/v1/contacts/import", content=text, headers=user.headers)
    assert response.status_code == 202, response.text
    path = f"/api/jobs/{response.json()['jobId']}"

    async def find_ended_job() -> dict[str, Any] | None:
        job: dict[str, Any] = (await user.get(path)).json()
        return job if job["status"] in ("succeeded", "failed") else None

    job: dict[str, Any] = await wait_until(find_ended_job, what="the import ends")
    return job


async def test_rows_are_checked_and_the_report_names_the_refused_ones(site: SystemHarness) -> None:
    ann, ben = site.create_user(), site.create_user()
    async with run_contacts_worker(site):
        job = await import_csv(ann, CONTACTS)
        assert job["output"] == {"imported": 2, "refused": 2}
        await import_csv(ann, "name,email\nAnn Lee,ann@example.com\n")  # the same address: one contact
    assert (await ann.get("/api/v1/contacts")).json()["contacts"] == [
        {"email": "ann@example.com", "name": "Ann Lee"},
        {"email": "cy@example.com", "name": "Cy, Jr."},
    ]
    assert (await ben.get("/api/v1/contacts")).json()["contacts"] == []
    [report] = (await ann.get(f"/api/jobs/{job['id']}/artifacts")).json()["artifacts"]
    link = (await ann.get(f"/api/artifacts/{report['id']}/link")).json()["url"]
    rows = list(csv.reader(io.StringIO((await site.http.get(link)).text)))
    assert [row[:2] for row in rows[1:]] == [
        ["2", "email is not an address"],
        ["3", "name is missing"],
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "not a CSV file in UTF-8"),
        (b"", "needs a first line"),
        (b"a,b\n1,2\n", "name and email"),
    ],
    ids=["binary", "empty", "other columns"],
)
async def test_users_read_why_a_file_was_refused(site: SystemHarness, content: bytes, message: str) -> None:
    async with run_contacts_worker(site):
        job = await import_csv(site.create_user(), content)
    assert job["status"] == "failed"
    assert message in job["error"]["message"]


async def test_the_system_has_a_tile_and_is_erased_with_its_user(site: SystemHarness) -> None:
    assert 'href="contacts"' in (await site.http.get("/")).text
    ann, ben = site.create_user(), site.create_user()
    async with run_contacts_worker(site):
        for user in (ann, ben):
            await import_csv(user, CONTACTS)
    assert [job["title"] for job in (await ann.get("/api/v1/my/jobs")).json()["jobs"]] == [
        "Import of contacts"
    ]
    async with Client(site.db.url.reveal(), settings=site.db.settings) as client:
        assert (await client.erase_owner(ann.id)).finished_at is not None
    assert (await ann.get("/api/v1/contacts")).json()["contacts"] == []
    assert len((await ben.get("/api/v1/contacts")).json()["contacts"]) == 2


async def test_the_page_imports_a_file_in_a_browser(site: SystemHarness, tmp_path: Path) -> None:
    ann = site.create_user()
    (tmp_path / "people.csv").write_text(CONTACTS)
    async with async_playwright() as playwright, run_contacts_worker(site):
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        page = await browser.new_page(viewport={"width": 390, "height": 844})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(f"{site.url}/#token={make_token(ann.id)}")
        await page.click(".tile:has-text('Contacts')")
        await page.set_input_files("#file", tmp_path / "people.csv")
        await page.click("#import-form button")
        await expect(page.locator("#import p")).to_have_text("2 imported, 2 refused", timeout=60_000)
        await expect(page.locator("#contacts li")).to_have_count(2)
        async with page.expect_download() as download:
            await page.click("text=Download report.csv")
        await (await download.value).save_as(tmp_path / "report.csv")
        widths = await page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
        if SCREENSHOT_FOLDER:
            await page.screenshot(path=Path(SCREENSHOT_FOLDER) / "own-system-phone.png", full_page=True)
        await browser.close()
    assert "name is missing" in (tmp_path / "report.csv").read_text()
    assert errors == []
    assert widths[0] <= widths[1]


def test_the_system_is_short_and_uses_public_names_only() -> None:
    files = [path for path in TEMPLATE.rglob("*") if path.suffix in (".py", ".sql", ".js", ".html", ".css")]
    assert sum(len(path.read_text().splitlines()) for path in files) < 150
    imports = re.findall(
        r"^from (holdfast\S*) import (.+)$", (TEMPLATE / "__init__.py").read_text(), re.MULTILINE
    )
    assert [module for module, _ in imports] == ["holdfast", "holdfast.server", "holdfast.systems"]
    for module, names in imports:
        assert set(names.split(", ")) <= set(importlib.import_module(module).__all__)


def test_the_guide_shows_the_code_of_the_template() -> None:
    blocks = re.findall(r"```(?:python|sql|javascript|html)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    code = "\n".join(path.read_text() for path in sorted(TEMPLATE.rglob("*")) if path.is_file())
    assert len(blocks) >= 6
    assert [block for block in blocks if block.strip() not in code] == []
