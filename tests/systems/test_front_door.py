"""The front door without a browser: tiles, navigation, the user's jobs of all systems, and their stream."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import httpx
import pytest
from api_clients import serve_app
from starlette.requests import Request
from starlette.responses import Response
from system_harness import SystemHarness

from holdfast import Client, Ctx, PublicError, TaskFailedError, task
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import bookmarks, clips, exports, mount, reports
from holdfast.systems.page_routes import PageRoute, SystemPage


@task(retries=0)
async def make_file(ctx: Ctx, fails: bool = False) -> None:
    ctx.progress(1, 4, message="Counting")
    await ctx.save("numbers.txt", b"1 2 3", "text/plain")
    if fails:
        raise PublicError("The numbers are wrong.")


async def serve_own_page(_: Request) -> Response:
    return Response("own")


@pytest.fixture
async def front_door(url: Secret, system_settings: Settings) -> AsyncGenerator[SystemHarness]:
    async with Database(url, system_settings) as db:
        async with db.connection() as connection:
            await exports.install(connection)
            await reports.install(connection)
        app = create_app(system_settings, database=db, **mount(exports, reports))
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield SystemHarness(db, http, address, [*exports.tasks, make_file])


async def test_home_has_a_tile_for_each_mounted_system(front_door: SystemHarness) -> None:
    response = await front_door.http.get("/")
    assert response.status_code == 200
    assert "default-src 'none'" in response.headers["content-security-policy"]
    tiles = re.findall(r'<a class="card tile" href="([^"]+)">', response.text)
    assert tiles == ["exports", "reports", "my-jobs"]
    assert 'href="./" aria-current="page">Home</a>' in response.text
    for path in (*tiles, "home/home.js", "home/shared.js", "exports/icon.svg"):
        assert (await front_door.http.get(f"/{path}")).status_code == 200


async def test_pages_link_to_each_other_and_stay_alone_without_a_front_door(
    front_door: SystemHarness, system_settings: Settings
) -> None:
    page = (await front_door.http.get("/reports")).text
    assert re.findall(r'<a href="([^"]+)"(?: aria-current="page")?>', page) == [
        *("./", "exports", "reports", "my-jobs"),
    ]
    alone = create_app(system_settings, database=front_door.db, **exports.mount())
    async with serve_app(alone) as address, httpx.AsyncClient(base_url=address) as http:
        assert "page-navigation" not in (await http.get("/exports")).text
        assert (await http.get("/")).status_code == 404


def test_mount_keeps_a_home_page_of_the_application_and_adds_none_without_pages() -> None:
    assert mount({"tasks": [make_file]})["routes"] == []
    own = mount(exports, {"routes": [PageRoute(SystemPage("/", "Own"), serve_own_page)]})["routes"]
    assert [route.path for route in own if isinstance(route, PageRoute)] == ["/exports", "/"]


async def test_my_jobs_are_those_of_the_user_in_words_for_users(front_door: SystemHarness) -> None:
    ann, ben = front_door.create_user(), front_door.create_user()
    async with Client(front_door.db.url.reveal(), settings=front_door.db.settings) as client:
        failing = await client.submit(make_file(fails=True), owner=ann.id)
        await client.submit(make_file(), owner=ben.id)
        async with front_door.run_worker():
            with pytest.raises(TaskFailedError):
                await failing.result()
            export = await ann.start_export(await ann.add_document())
            await ann.wait_for_export(export)
    newest, oldest = (await ann.get("/api/v1/my/jobs")).json()["jobs"]
    assert (newest["id"], newest["title"], newest["page"]) == (export, "Document as PDF", "/exports")
    assert (newest["status"], newest["percent"], newest["canCancel"]) == ("succeeded", 100, False)
    assert (oldest["title"], oldest["error"]) == ("Make file", "The numbers are wrong.")
    assert oldest["canRetry"] is True
    first = (await ann.get("/api/v1/my/jobs?limit=1")).json()
    assert first["next"] == newest["id"]
    rest = (await ann.get(f"/api/v1/my/jobs?limit=1&before={first['next']}")).json()
    assert [job["id"] for job in rest["jobs"]] == [oldest["id"]]
    assert (await front_door.http.get("/api/v1/my/jobs")).status_code == 401
    assert (await ann.get("/api/v1/my/jobs?limit=0")).status_code == 422


async def test_my_files_are_listed_newest_first(front_door: SystemHarness) -> None:
    ann, ben = front_door.create_user(), front_door.create_user()
    async with Client(front_door.db.url.reveal(), settings=front_door.db.settings) as client:
        jobs = [await client.submit(make_file(), owner=user.id) for user in (ann, ann, ben)]
        async with front_door.run_worker():
            for job in jobs:
                await job.result()
    files = (await ann.get("/api/artifacts")).json()["artifacts"]
    assert sorted(file["job_id"] for file in files) == sorted(str(job.id) for job in jobs[:2])
    assert files[0]["id"] > files[1]["id"]
    page = (await ann.get("/api/artifacts?limit=1")).json()
    assert [page["artifacts"][0]["id"], page["next"]] == [files[0]["id"], files[0]["id"]]
    rest = (await ann.get(f"/api/artifacts?limit=1&before={page['next']}")).json()
    assert [file["id"] for file in rest["artifacts"]] == [files[1]["id"]]
    foreign = (await ann.get(f"/api/artifacts?owner={ben.id}")).json()["artifacts"]
    assert [file["id"] for file in foreign] == [file["id"] for file in files]


async def test_stream_sends_the_jobs_of_the_user_and_their_changes(front_door: SystemHarness) -> None:
    ann, ben = front_door.create_user(), front_door.create_user()
    async with Client(front_door.db.url.reveal(), settings=front_door.db.settings) as client:
        await client.submit(make_file(), owner=ben.id)
        job = await client.submit(make_file(), owner=ann.id)
        request = front_door.http.stream("GET", "/api/v1/my/jobs/stream", headers=ann.headers)
        async with request as response, front_door.run_worker():
            text = ""
            async for part in response.aiter_text():
                text += part
                if '"succeeded"' in text:
                    break
    assert set(re.findall(r'"id":"([^"]+)"', text)) == {str(job.id)}
    assert '"queued"' in text


async def test_bookmarks_and_clips_are_listed_beside_the_jobs(url: Secret, system_settings: Settings) -> None:
    async with Database(url, system_settings) as db:
        async with db.connection() as connection:
            await bookmarks.install(connection)
            await clips.install(connection)
        app = create_app(system_settings, database=db, **mount(bookmarks, clips))
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            door = SystemHarness(db, http, address, [])
            ann, ben = door.create_user(), door.create_user()
            for user in (ann, ben):
                await user.post("/api/v1/bookmarks/add/data", {"url": f"https://pages.test/{user.id}"})
                await user.post("/api/v1/clips", {"video_url": f"https://videos.test/{user.id}"})
            async with db.connection() as connection:
                await connection.execute(
                    "update clipnest_videos set processing_status = 'failed', processing_error = 'No sound.'"
                )
            items = (await ann.get("/api/v1/my/jobs")).json()["items"]
            assert [(item["page"], item["status"], item["error"]) for item in items] == [
                ("/bookmarks", "queued", None),
                ("/clips", "failed", "No sound."),
            ]
            assert {item["title"].rpartition("/")[2] for item in items} == {ann.id}
            async with http.stream("GET", "/api/v1/my/jobs/stream", headers=ann.headers) as response:
                text = ""
                async for part in response.aiter_text():
                    if not text and "items" in part:  # what the page deletes disappears from it
                        assert (await ann.delete(items[0]["deletePath"])).status_code == 204
                    text += part if "items" in part else ""
                    if text.count("event: items") == 2:
                        break
            assert text.count("pages.test") == 1
            assert (await ann.post(items[1]["retryPath"], {})).status_code == 202
            assert (await ben.delete(items[1]["deletePath"])).status_code == 404
