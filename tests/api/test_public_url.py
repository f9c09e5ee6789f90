"""Links that lead back to the API: with `public_url`, under a mounted prefix, and from the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from book_app import SERVICE_KEY
from shell import Captured
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from holdfast import Client, task
from holdfast.cli.root import run_command_line
from holdfast.engine.connection import Database
from holdfast.errors import SettingsError
from holdfast.server import create_app, get_client
from holdfast.settings import Secret, Settings

HEADERS = {"Authorization": f"Bearer {SERVICE_KEY}"}
PUBLIC_URL = "https://app.example/tasks"


@task
async def greet(name: str) -> str:
    return name


async def link_of_a_system(request: Request) -> Response:
    """Return a link as the routes of systems do."""
    return PlainTextResponse(await get_client(request).files.create_download_link(request.path_params["id"]))


@pytest.fixture
def local_settings(settings: Settings, url: Secret, tmp_path: Path) -> Settings:
    return replace(settings, database_url=url, home=tmp_path, service_key=Secret(SERVICE_KEY))


async def open_mounted_api(settings: Settings, db: Database, prefix: str) -> httpx.AsyncClient:
    app = create_app(
        settings, database=db, tasks=[greet], routes=[Route("/link/{id}", link_of_a_system, methods=["GET"])]
    )
    mounted = Starlette(routes=[Mount(prefix or "/", app)])
    transport = httpx.ASGITransport(mounted)
    return httpx.AsyncClient(transport=transport, base_url="http://local", headers=HEADERS)


@pytest.fixture
async def file_id(local_settings: Settings) -> AsyncGenerator[str]:
    async with Client(settings=local_settings) as client:
        yield str((await client.files.put("a.txt", b"hello", "text/plain")).id)


async def collect_links(http: httpx.AsyncClient, prefix: str, file_id: str) -> dict[str, str]:
    """Return every kind of link that the API answers with."""
    job = await http.post(f"{prefix}/api/jobs", json={"type": "greet", "args": {"name": "a"}})
    job_id = job.json()["id"]
    ticket = (await http.post(f"{prefix}/api/jobs/{job_id}/ticket")).json()
    return {
        "job": job.headers["location"],
        "ticket": ticket["url"].partition("?")[0],
        "signed": (await http.get(f"{prefix}/api/artifacts/{file_id}/link")).json()["url"],
        "system": (await http.get(f"{prefix}/link/{file_id}")).text,
    }


@pytest.mark.parametrize("prefix", ["", "/tasks", "/a/b"])
async def test_links_have_the_prefix_of_a_mounted_application(
    local_settings: Settings, db: Database, file_id: str, prefix: str
) -> None:
    async with await open_mounted_api(local_settings, db, prefix) as http:
        links = await collect_links(http, prefix, file_id)
        for name in ("signed", "system"):
            assert links[name].startswith(f"{prefix}/files/")
            response = await http.get(links[name], headers={"Authorization": ""})
            assert (response.status_code, response.text) == (200, "hello"), name
        assert (await http.get(links["job"])).json()["type"] == "greet"
        assert links["ticket"] == f"{links['job']}/events"


async def test_links_start_with_the_public_url(local_settings: Settings, db: Database, file_id: str) -> None:
    settings = replace(local_settings, public_url=PUBLIC_URL + "/")
    async with await open_mounted_api(settings, db, "/tasks") as http:
        links = await collect_links(http, "/tasks", file_id)
        assert all(link.startswith(f"{PUBLIC_URL}/") for link in links.values()), links
        assert (await http.get(links["signed"].removeprefix("https://app.example"))).text == "hello"
    async with Client(settings=settings) as client:  # as in a task that sends a mail
        link = await client.files.create_download_link(file_id, 600)
    assert link.startswith(f"{PUBLIC_URL}/files/")


async def test_the_public_url_may_be_the_prefix_only(local_settings: Settings, file_id: str) -> None:
    async with Client(settings=replace(local_settings, public_url="/tasks/")) as client:
        assert (await client.files.create_download_link(file_id)).startswith("/tasks/files/")


async def test_the_command_prints_a_public_link(
    url: Secret, local_settings: Settings, file_id: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url.reveal())
    monkeypatch.setenv("HOLDFAST_HOME", str(local_settings.home))
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", PUBLIC_URL)
    assert await asyncio.to_thread(run_command_line, ["file", "sign", file_id]) == 0
    assert capsys.readouterr().out.strip().startswith(f"{PUBLIC_URL}/files/")


@pytest.mark.parametrize(
    "url",
    [
        "app.example",
        "ftp://app.example",
        "https://",
        "https://a:b@c.example",
        "https://a/?x=1",
        "https://a b",
        "//a",
    ],
)
def test_an_invalid_public_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="public_url must be an http or https URL without query"):
        Settings(public_url=url)
