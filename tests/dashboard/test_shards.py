"""The dashboard over several shards: one login, pages of all shards, and actions on the right shard."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from shard_databases import create_shard_databases
from starlette.applications import Starlette

from holdfast import Client, shard_of, task
from holdfast.engine import maintenance, queues
from holdfast.server import create_app, create_dashboard
from holdfast.server.dashboard.filters import format_duration
from holdfast.server.dashboard.navigation import NAVIGATION_LINKS_BY_GROUP
from holdfast.server.dashboard.registry import PAGE_ROUTES
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

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
    page = await browser.get("/dashboard/jobs")
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


async def test_pages_show_each_shard_and_lead_to_one(browser: httpx.AsyncClient, client: Client) -> None:
    for number in (1, 2):
        await client.shard(number).submit(echo("x"))
        await client.shard(number).pause_queue(f"only-{number}", reason="test", allow_new=True)
    page = await browser.get("/dashboard/queues")
    assert get_path(page) == "/dashboard/queues"
    assert re.findall(r'<section class="shard-section" id="(shard-\d)"', page.text) == ["shard-1", "shard-2"]
    sections = page.text.split('<section class="shard-section"')[1:]
    for number, section in zip((1, 2), sections, strict=True):
        assert f">Shard {number}: Queues</h2>" in section
        assert f"/dashboard/shards/{number}/queue?name=only-{number}" in section
        assert f"only-{3 - number}" not in section
        assert f'action="/dashboard/shards/{3 - number}' not in section
    assert 'href="/dashboard/shards/2/queues">Shard 2</a>' in page.text
    assert 'href="/dashboard/queues" aria-current="true">All shards</a>' in page.text
    on_one = await browser.get("/dashboard/shards/2/queues")
    assert 'href="/dashboard/queues">All shards</a>' in on_one.text


async def test_every_page_of_the_navigation_shows_all_shards_or_none(browser: httpx.AsyncClient) -> None:
    for links in NAVIGATION_LINKS_BY_GROUP.values():
        for link in links:
            page = await browser.get(f"/dashboard{link.path}")
            assert page.status_code == 200, link.path
            assert get_path(page) == f"/dashboard{link.path}"
            ids = re.findall(r' id="([^"]+)"', page.text)
            assert len(ids) == len(set(ids)), link.path
            if PAGE_ROUTES[link.path].all_shards == "sections":
                assert page.text.count('<section class="shard-section"') == 2, link.path
                assert all(f">Shard {number}: " in page.text for number in (1, 2)), link.path
            for number in (1, 2):
                shown = await browser.get(f"/dashboard/shards/{number}{link.path}")
                assert shown.status_code == 200, link.path
                assert get_path(shown).startswith(f"/dashboard/shards/{number}"), link.path
    assert (await browser.get("/dashboard/shards/9/jobs")).status_code == 404
    assert (await browser.get("/dashboard/nosuch")).status_code == 404


async def test_overview_has_sums_and_a_line_for_each_shard(
    browser: httpx.AsyncClient, client: Client
) -> None:
    before = read_tile(await browser.get("/dashboard/"), "Ready")
    for number in (1, 2, 2):
        await client.shard(number).submit(echo("x"))
    page = await browser.get("/dashboard/")
    assert get_path(page) == "/dashboard/"
    assert read_tile(page, "Ready") == before + 3
    assert 'href="/dashboard/shards/2/">Shard 2</a>' in page.text
    assert page.text.count("Takes work") == 2
    assert "oes not answer" not in page.text


def read_tile(page: httpx.Response, name: str) -> int:
    tile = re.search(rf"<b>([\d,]+)</b>\s*<span>{name}</span>", page.text)
    assert tile is not None, page.text
    return int(tile[1].replace(",", ""))


async def test_what_one_shard_has_names_the_others(browser: httpx.AsyncClient, client: Client) -> None:
    await client.shard(2).submit(echo("x"))
    await client.shard(2).schedules.put(echo("x"), name="only-second", cron="0 4 * * *")
    page = await browser.get("/dashboard/schedules/show", params={"name": "only-second"})
    assert page.status_code == 200
    assert page.text.count('<section class="shard-section"') == 1
    assert "Not on shard 1." in page.text
    assert (await browser.get("/dashboard/schedules/show", params={"name": "nosuch"})).status_code == 404


def read_token(page: httpx.Response) -> str:
    token = re.search(r'name="token" value="([^"]+)"', page.text)
    assert token is not None
    return token[1]


async def test_bulk_cancel_reaches_all_shards(browser: httpx.AsyncClient, client: Client) -> None:
    jobs = [await client.shard(number).submit(echo("bulk").options(queue="bulk-all")) for number in (1, 2, 2)]
    kept = await client.shard(2).submit(echo("kept").options(queue="bulk-kept"))
    query = {"verb": "cancel", "q": "queue:bulk-all", "all": "yes"}
    preview = await browser.get("/dashboard/bulk/new", params=query)
    assert "Cancel 3 jobs" in preview.text
    assert re.search(r"Shard 1: 1 job\.\s+Shard 2: 2 jobs\.", preview.text)
    form = {**query, "reason": "test", "token": read_token(preview)}
    done = await browser.post("/dashboard/bulk", data=form)
    assert get_path(done) == "/dashboard/bulk"
    assert "Bulk cancel of 3 jobs started (shard 1: 1, shard 2: 2)." in done.text

    async def all_cancelled() -> bool:
        for number in (1, 2):
            async with client.shard(number).connection() as connection:
                await maintenance.tick_operations(connection)
        return {(await client.get(job.id)).status for job in jobs} == {"cancelled"}

    await wait_until(all_cancelled, within=timedelta(seconds=20), what="all jobs to be cancelled")
    assert (await client.get(kept.id)).status != "cancelled"


async def test_change_without_a_shard_is_refused(browser: httpx.AsyncClient, client: Client) -> None:
    await client.shard(1).submit(echo("x").options(queue="q"))
    token = read_token(await browser.get("/dashboard/shards/1/queue", params={"name": "q"}))
    form = {"name": "q", "max_running": "1", "token": token}
    refused = await browser.post("/dashboard/limits/set", data=form)
    assert refused.status_code == 400
    assert "needs a shard" in refused.text
    for number in (1, 2):
        assert "q" not in {limit.name for limit in await client.shard(number).limits.list()}


async def test_queue_is_paused_and_resumed_on_all_shards(browser: httpx.AsyncClient, client: Client) -> None:
    """Also on a shard where it has no tasks yet, because its next task may go there."""
    await client.shard(1).submit(echo("x").options(queue="halted"))
    page = await browser.get("/dashboard/queue", params={"name": "halted"})
    assert "Queue halted on all shards" in page.text
    form = {"name": "halted", "span": "1h", "reason": "night", "token": read_token(page)}
    done = await browser.post("/dashboard/queue/pause", data=form)
    assert get_path(done) == "/dashboard/queue"
    assert "Queue halted: shard 1: paused, shard 2: paused." in done.text
    for number in (1, 2):
        [queue] = await list_queues(client, number, "halted")
        assert queue["paused_reason"] == "night"
        assert queue["paused_until"] is not None
    assert re.search(r'class="flash".*?action="/dashboard/queue/resume".*?</form>', done.text, re.DOTALL)
    await client.shard(1).resume_queue("halted")
    listed = (await browser.get("/dashboard/queues")).text.partition('<section class="shard-section"')[0]
    row = next(row for row in listed.split("<tr ") if "name=halted" in row)
    assert "on shard 2" in row
    assert "Resume on all shards" in row
    resumed = await browser.post("/dashboard/queue/resume", data={"name": "halted", "token": form["token"]})
    assert "Queue halted: shard 1: was not paused, shard 2: resumed." in resumed.text
    for number in (1, 2):
        assert not any(queue["paused_at"] for queue in await list_queues(client, number, "halted"))
    unknown = await browser.post("/dashboard/queue/pause", data={**form, "name": "hatled"})
    assert unknown.status_code == 404
    assert "did you mean &#39;halted&#39;?" in unknown.text


async def test_charts_add_up_all_shards(browser: httpx.AsyncClient, client: Client) -> None:
    """Counts are sums. Quantiles are those of one database that has the samples of both shards."""
    slow, fast = [0] * 24, [0] * 24
    slow[13], fast[3] = 10, 30
    for number, histogram in ((1, slow), (2, fast)):
        async with client.shard(number).connection() as connection:
            await connection.execute(
                "insert into holdfast.metric_samples (span_s, at, queue, type, succeeded, failed, cancelled,"
                " wait_histogram, run_histogram) values"
                " (60, date_trunc('minute', holdfast.now() - interval '2 minutes'), 'charted', $1, $2, 0, 0,"
                " $3, $3)",
                f"type-{number}", sum(histogram), histogram,
            )  # fmt: skip
            both = await connection.fetchval(
                "select holdfast.compute_histogram_quantile($1, 0.95)",
                [a + b for a, b in zip(slow, fast, strict=True)],
            )
    overview_page = await browser.get("/dashboard/")
    points = read_chart_points(overview_page, "Throughput")
    assert ["succeeded 40", "failed 0", "cancelled 0"] in [point["values"] for point in points]
    waits = [point["values"] for point in read_chart_points(overview_page, "Wait time")]
    assert format_duration(both) in [values[1].removeprefix("p95 ") for values in waits]
    by_queue = await browser.get("/dashboard/charts", params={"by": "queue", "name": "charted"})
    assert get_path(by_queue) == "/dashboard/charts"
    assert "succeeded 40" in [point["values"][0] for point in read_chart_points(by_queue, "Throughput")]
    by_task = await browser.get("/dashboard/charts", params={"by": "task"})
    assert all(f"type-{number}</a>" in by_task.text for number in (1, 2))
    on_one = await browser.get("/dashboard/shards/2/charts", params={"by": "queue", "name": "charted"})
    assert "succeeded 30" in [point["values"][0] for point in read_chart_points(on_one, "Throughput")]


def read_chart_points(page: httpx.Response, title: str) -> list[dict[str, Any]]:
    chart = re.search(rf'<svg[^>]*aria-label="{title}"[^>]*>', page.text)
    assert chart is not None, page.text
    points = re.search(r'data-points="([^"]*)"', chart[0])
    assert points is not None
    decoded: list[dict[str, Any]] = json.loads(html.unescape(points[1]))
    return decoded


async def list_queues(client: Client, number: int, name: str) -> list[dict[str, Any]]:
    async with client.shard(number).connection() as connection:
        return [queue for queue in await queues.list_task_queues(connection) if queue["queue"] == name]


async def test_export_has_the_jobs_of_all_shards(browser: httpx.AsyncClient, client: Client) -> None:
    jobs = [await client.shard(number).submit(echo("export").options(queue="exported")) for number in (1, 2)]
    for file_format in ("csv", "jsonl"):
        query = {"q": "queue:exported", "format": file_format}
        exported = await browser.get("/dashboard/jobs/export", params=query)
        assert exported.text.count("id,state,queue") == (1 if file_format == "csv" else 0)
        assert all(str(job.id) in exported.text for job in jobs)


async def test_missing_shard_is_named_and_the_others_are_shown(
    urls: dict[int, str], settings: Settings, client: Client
) -> None:
    job = await client.shard(2).submit(echo("shown"))
    async for browser in open_browser(build_app(settings, {**urls, 3: DEAD_URL})):
        overview = await sign_in(browser)
        assert get_path(overview) == "/dashboard/"
        assert "Shard 3 does not answer. Its work is not in the numbers" in overview.text
        assert "Does not answer" in overview.text
        page = await browser.get("/dashboard/jobs")
        assert "Jobs of shard 3 are missing" in page.text
        assert str(job.id) in page.text
        workers = await browser.get("/dashboard/workers")
        assert "Shard 3 does not answer. Its part of this page is missing." in workers.text
        assert ">Shard 2: Workers</h2>" in workers.text
        preview = await browser.get("/dashboard/bulk/new", params={"verb": "cancel", "all": "yes"})
        assert "Shard 3 does not answer. Its jobs are not counted here." in preview.text
        export = await browser.get("/dashboard/jobs/export", params={"format": "csv"})
        assert export.status_code == 503  # a file would hide that jobs are missing
        assert (await browser.get(f"/dashboard/jobs/{job.id}")).status_code == 200
        assert (await browser.get("/dashboard/shards/3/jobs")).status_code == 503
