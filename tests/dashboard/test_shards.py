"""The dashboard over several shards: one login, a picker, the jobs of all, and actions on the right shard."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from shard_databases import create_shard_databases
from starlette.applications import Starlette

from holdfast import Client, shard_of, task
from holdfast.server import create_app, create_dashboard
from holdfast.settings import Secret, Settings

KEY = "hf_test_key"
DEAD_URL = "postgresql://nobody@127.0.0.1:1/nothing"


@task(queue="shown")
async def echo(text: str) -> str:
    return text


@pytest.fixture(scope="module")
def urls(server_url: Secret, template: str, settings: Settings) -> dict[int, str]:
    return asyncio.run(create_shard_databases(server_url, template, settings, [1, 2]))


def build_app(settings: Settings, urls: dict[int, str]) -> Starlette:
    text = ",".join(f"{number}={url}" for number, url in urls.items())
    own = replace(
        settings,
        database_url=None,
        shards=Secret(text),
        service_key=Secret(KEY),
        connect_timeout=timedelta(seconds=2),
    )
    return create_app(own, dashboard=create_dashboard)


async def open_browser(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://api", follow_redirects=True, headers={"origin": "http://api"}
    ) as browser:
        yield browser
    await app.state.holdfast.shards.close()


@pytest.fixture
async def browser(urls: dict[int, str], settings: Settings) -> AsyncGenerator[httpx.AsyncClient]:
    async for browser in open_browser(build_app(settings, urls)):
        await sign_in(browser)
        yield browser


@pytest.fixture
async def client(urls: dict[int, str], settings: Settings) -> AsyncGenerator[Client]:
    async with Client(shards=urls, settings=settings) as client:
        yield client


async def sign_in(browser: httpx.AsyncClient, next_path: str = "/") -> httpx.Response:
    return await browser.post("/dashboard/login", data={"key": KEY, "next": next_path})


def get_path(response: httpx.Response) -> str:
    return response.url.path


async def test_one_login_opens_all_shards(urls: dict[int, str], settings: Settings) -> None:
    async for browser in open_browser(build_app(settings, urls)):
        login_page = await browser.get("/dashboard/shards/2/queues")
        assert get_path(login_page) == "/dashboard/login"
        assert login_page.url.params["next"] == "/shards/2/queues"
        page = await sign_in(browser, "/shards/2/queues")
        assert get_path(page) == "/dashboard/shards/2/queues"
        assert get_path(await browser.get("/dashboard/shards/1/workers")) == "/dashboard/shards/1/workers"
        await browser.post("/dashboard/shards/1/logout")
        assert get_path(await browser.get("/dashboard/shards/1/workers")) == "/dashboard/login"


async def test_jobs_of_all_shards_are_one_list(browser: httpx.AsyncClient, client: Client) -> None:
    jobs = [await client.shard(number).submit(echo("x")) for number in (1, 2, 1, 2)]
    page = await browser.get("/dashboard/")
    assert get_path(page) == "/dashboard/jobs"
    shown = re.findall(r'data-row="([0-9a-f-]{36})"', page.text)
    assert shown[:4] == sorted((str(job.id) for job in jobs), reverse=True)
    assert 'data-label="Shard">' in page.text
    assert "does not answer" not in page.text
    searched = await browser.get("/dashboard/jobs", params={"q": f"id:{jobs[0].id}"})
    assert searched.status_code == 200
    wrong = await browser.get("/dashboard/jobs", params={"q": "nosuch:1"})
    assert "banner" in wrong.text


async def test_page_of_a_job_is_on_its_shard(browser: httpx.AsyncClient, client: Client) -> None:
    for number in (1, 2):
        job = await client.shard(number).submit(echo("page"))
        page = await browser.get(f"/dashboard/jobs/{job.id}")
        assert page.status_code == 200
        assert get_path(page) == f"/dashboard/shards/{number}/jobs/{job.id}"
        current = re.search(r'href="([^"]+)" aria-current="true">Shard (\d)', page.text)
        assert current is not None
        assert current[2] == str(number)
        assert current[1] == f"/dashboard/shards/{number}/"


async def test_action_changes_the_shard_of_its_page(browser: httpx.AsyncClient, client: Client) -> None:
    job = await client.shard(2).submit(echo("cancel"))
    assert shard_of(job.id) == 2
    page = await browser.get(f"/dashboard/jobs/{job.id}")
    token = re.search(r'name="token" value="([^"]+)"', page.text)
    assert token is not None
    done = await browser.post(f"/dashboard/jobs/{job.id}/cancel", data={"token": token[1]})
    assert done.status_code == 200
    assert get_path(done) == f"/dashboard/shards/2/jobs/{job.id}"
    assert (await client.get(job.id)).status == "cancelled"


async def test_other_pages_lead_to_a_shard_and_have_a_picker(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/dashboard/queues")
    assert get_path(page) == "/dashboard/shards/1/queues"
    assert 'href="/dashboard/shards/2/queues">Shard 2</a>' in page.text
    assert 'href="/dashboard/jobs">All shards</a>' in page.text
    for path in ("/", "/errors", "/workers", "/schedules", "/limits", "/files", "/database", "/jobs"):
        for number in (1, 2):
            shown = await browser.get(f"/dashboard/shards/{number}{path}")
            assert shown.status_code == 200, path
            assert get_path(shown).startswith(f"/dashboard/shards/{number}"), path
    assert (await browser.get("/dashboard/shards/9/jobs")).status_code == 404


async def test_missing_shard_is_named_and_the_others_are_shown(
    urls: dict[int, str], settings: Settings, client: Client
) -> None:
    job = await client.shard(2).submit(echo("shown"))
    async for browser in open_browser(build_app(settings, {**urls, 3: DEAD_URL})):
        page = await sign_in(browser)
        assert get_path(page) == "/dashboard/jobs"
        assert "Jobs of shard 3 are missing" in page.text
        assert str(job.id) in page.text
        assert (await browser.get(f"/dashboard/jobs/{job.id}")).status_code == 200
        assert (await browser.get("/dashboard/shards/3/jobs")).status_code == 503
