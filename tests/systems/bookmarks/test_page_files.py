"""The page at /bookmarks without a browser: routes, policy, rights, and what its files may contain."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from api_clients import make_token, serve_app
from bookmarks_harness import BookmarksHarness
from system_harness import SystemUser

from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import bookmarks
from holdfast.systems.bookmarks import PACKAGE_FOLDER
from holdfast.systems.page_routes import SHARED_PAGE_FOLDER, SystemPage, render_page

PAGE_FILES = [
    file
    for folder in (SHARED_PAGE_FOLDER, PACKAGE_FOLDER / "page")
    for file in sorted(folder.iterdir())
    if file.suffix in {".js", ".css", ".html"}
]
FILES_OF_ALL_PAGES = [
    file
    for folder in (SHARED_PAGE_FOLDER, *sorted(SHARED_PAGE_FOLDER.parent.glob("*/page")))
    for file in sorted(folder.iterdir())
    if file.suffix in {".js", ".css", ".html"}
]


async def test_page_and_every_file_that_it_names_are_served_to_anyone(system: BookmarksHarness) -> None:
    page = await system.http.get("/bookmarks")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    names = {*re.findall(r'(?:src|href)="(bookmarks/[^"]+)"', page.text)}
    names |= {f"bookmarks/{file.name}" for file in PAGE_FILES if file.suffix != ".html"}
    assert {"bookmarks/bookmarks.js", "bookmarks/shared.css", "bookmarks/icon.svg"} <= names
    for name in names:
        response = await system.http.get(f"/{name}")
        assert response.status_code == 200, name
        assert response.headers["x-content-type-options"] == "nosniff"
    for name in ("content.html", "layout.html", "index.html", "../__init__.py"):
        assert (await system.http.get(f"/bookmarks/{name}")).status_code == 404, name


async def test_policy_forbids_inline_code_other_sites_and_html_from_text(system: BookmarksHarness) -> None:
    headers = (await system.http.get("/bookmarks")).headers
    policy = dict(
        (part.strip() + " ").split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"].strip() == "'none'"
    assert policy["script-src"].strip() == policy["style-src"].strip() == "'self'"
    assert policy["connect-src"].strip() == "'self'"
    assert policy["img-src"].strip() == "'self' blob:"
    assert policy["frame-ancestors"].strip() == policy["base-uri"].strip() == "'none'"
    assert policy["require-trusted-types-for"].strip() == "'script'"
    assert policy["trusted-types"].strip() == "'none'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("file", FILES_OF_ALL_PAGES, ids=lambda file: file.name)
def test_files_build_no_html_from_text_and_load_nothing_from_other_sites(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\son\w+="
    assert re.findall(forbidden, text) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
    urls = {url for url in re.findall(r"https?://[^\s\"'`)<]+", text) if "www.w3.org/2000/svg" not in url}
    assert urls <= {"https://example.com/", "https://${text}"}


def test_layout_escapes_the_title_and_keeps_the_content() -> None:
    page = render_page(SystemPage("/notes", "<b>Notes</b> & more"), '<p id="p">{title}</p>')
    assert "<title>&lt;b&gt;Notes&lt;/b&gt; &amp; more</title>" in page
    assert '<p id="p">{title}</p>' in page
    assert 'src="notes/notes.js"' in page


async def test_details_have_the_page_text_for_their_owner_only(system: BookmarksHarness) -> None:
    ann, ben = system.create_user(), system.create_user()
    bookmark = await system.add(ann, "https://example.test/page")
    await system.fetch("update public.bookmarks set page_text = 'Readable words'")
    path = f"/api/v1/bookmarks/{bookmark['id']}"
    assert (await ann.get(path)).json()["page_text"] == "Readable words"
    assert (await ben.get(path)).status_code == 404
    assert (await system.http.get(path)).status_code == 401
    listed = (await ann.get("/api/v1/bookmarks")).json()["bookmarks"]
    assert "page_text" not in listed[0]


@pytest.mark.parametrize("text", ["javascript:alert(1)", "data:text/html,<script>1</script>", "file:///x"])
async def test_urls_that_run_scripts_are_refused(system: BookmarksHarness, text: str) -> None:
    ann: SystemUser = system.create_user()
    response = await ann.post("/api/v1/bookmarks/add/data", {"url": text})
    assert response.status_code == 422
    assert "http" in response.text
    assert (await ann.get("/api/v1/bookmarks")).json()["total"] == 0


async def test_cookie_of_the_host_application_signs_in_but_not_from_other_sites(
    url: Secret, system_settings: Settings
) -> None:
    settings = replace(system_settings, jwt_cookie="app_session")
    user = str(uuid4())
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            await bookmarks.install(connection)
        app = create_app(settings, database=db, **bookmarks.mount())
        async with (
            serve_app(app) as address,
            httpx.AsyncClient(base_url=address, cookies={"app_session": make_token(user)}) as http,
        ):
            body, path = {"url": "https://example.test/"}, "/api/v1/bookmarks/add/data"
            for headers in ({}, {"sec-fetch-site": "cross-site"}, {"origin": "https://evil.test"}):
                assert (await http.post(path, json=body, headers=headers)).status_code == 403, headers
            assert (await http.get("/api/v1/bookmarks")).json()["total"] == 0
            same_origin = {"sec-fetch-site": "same-origin"}
            assert (await http.post(path, json=body, headers=same_origin)).status_code == 200
            assert (await http.get("/api/v1/bookmarks")).json()["total"] == 1
