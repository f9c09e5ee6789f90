"""Event streams over HTTP: snapshot first, every event once and in order, after reconnects too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import httpx
import pytest
from api_clients import (
    EventStreamReader,
    StreamFrame,
    bearer_headers,
    make_token,
    open_event_stream,
    serve_app,
)
from book_app import SERVICE_KEY, book_job
from manual_worker import ManualWorker, submit_job
from starlette.applications import Starlette

from holdfast.engine import artifacts
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import LeasedTask
from holdfast.server import create_app
from holdfast.settings import Settings
from holdfast.testing import wait_until

TIMEOUT = timedelta(seconds=60)
ANN, SERVICE = bearer_headers(make_token("ann")), bearer_headers(SERVICE_KEY)


@pytest.fixture
async def web(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    async with serve_app(app) as base, httpx.AsyncClient(base_url=base) as client:
        yield client


async def start_book_job(web: httpx.AsyncClient, count: int = 2) -> str:
    body = {"type": "book", "params": {"count": count}}
    return str((await web.post("/api/jobs/start", json=body, headers=ANN)).json()["id"])


async def report_progress(conn: Connection, task: LeasedTask, percent: float, phase: str = "work") -> None:
    await conn.execute(
        "select holdfast.progress($1, $2, $3, $4, $5)", task.id, task.attempt, task.nonce, percent, phase
    )


async def read_first_frame(stream: EventStreamReader, event: str) -> dict[str, object]:
    frame = await stream.read_next()
    assert frame is not None
    assert frame.event == event
    return dict(frame.data)


async def test_a_stream_shows_a_job_from_the_snapshot_to_the_end(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job, worker = await start_book_job(web, 1), ManualWorker(conn)
    async with open_event_stream(web, f"/api/jobs/{job}/events", ANN) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["x-accel-buffering"] == "no"
        snapshot = await read_first_frame(stream, "snapshot")
        assert (snapshot["v"], snapshot["job"], snapshot["status"], snapshot["total"]) == (
            2,
            job,
            "queued",
            2,
        )
        page = await worker.claim_one_task()
        assert (await read_first_frame(stream, "status"))["status"] == "running"
        await report_progress(conn, page, 50)
        progress = await read_first_frame(stream, "progress")
        assert (progress["percent"], progress["phase"]) == (25, "work")
        await worker.finish_task(page)
        assert await read_first_frame(stream, "task") == {"name": "page", "status": "succeeded"}
        await worker.finish_task(await worker.claim_one_task(), body=7)
        frames = await stream.read_until("end")
        assert (frames[-1].data["status"], frames[-1].data["output"], frames[-1].data["percent"]) == (
            "succeeded",
            7,
            100,
        )
        assert await stream.read_next() is None
    again = await web.get(f"/api/jobs/{job}/events", headers={**ANN, "last-event-id": frames[-1].id or ""})
    assert again.status_code == 204
    async with open_event_stream(web, f"/api/jobs/{job}/events", ANN) as stream:
        assert [frame.event for frame in await stream.read_until("end")] == ["snapshot", "end"]


async def test_a_reconnecting_client_gets_missed_events_exactly_once(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job, worker = await start_book_job(web, 6), ManualWorker(conn)
    ids: list[int] = []
    after = ""
    tasks = await worker.claim_tasks(6)
    for task in tasks:
        headers = {**ANN, "last-event-id": after} if after else ANN
        async with open_event_stream(web, f"/api/jobs/{job}/events", headers) as stream:
            frame = await stream.read_next()
            assert frame is not None
            assert (frame.event == "snapshot") == (not after)
            while frame is not None and frame.id is None:
                frame = await stream.read_next()
            assert frame is not None
            after = frame.id or ""
            ids.append(int(after))
        await worker.finish_task(task)
    async with open_event_stream(web, f"/api/jobs/{job}/events?after={after}", ANN) as stream:
        await worker.finish_task(await worker.claim_one_task())
        ids += [int(frame.id) for frame in await stream.read_until("end") if frame.id]
    assert ids == sorted(set(ids))
    assert ids == list(range(ids[0], ids[-1] + 1))


async def test_an_event_id_that_is_no_longer_stored_gives_a_new_snapshot(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job, worker = await start_book_job(web), ManualWorker(conn)
    for task in await worker.claim_tasks(2):
        await worker.finish_task(task)
    await conn.execute("delete from holdfast.events where seq < 3")
    async with open_event_stream(web, f"/api/jobs/{job}/events", {**ANN, "last-event-id": "1"}) as stream:
        assert (await read_first_frame(stream, "snapshot"))["resync"] is True
    async with open_event_stream(web, f"/api/jobs/{job}/events", {**ANN, "last-event-id": "999"}) as stream:
        assert (await read_first_frame(stream, "snapshot"))["resync"] is True
    assert (await web.get(f"/api/jobs/{job}/events?after=x", headers=ANN)).status_code == 422


async def test_progress_is_merged_and_the_last_progress_is_sent(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job, worker = await start_book_job(web, 1), ManualWorker(conn)
    page = await worker.claim_one_task()
    async with open_event_stream(web, f"/api/jobs/{job}/events", ANN) as stream:
        await read_first_frame(stream, "snapshot")
        began, merged = time.monotonic(), [0.0]
        for percent in range(1, 61):
            await report_progress(conn, page, percent)
        while merged[-1] < 30:
            frame = await stream.read_next()
            assert frame is not None
            merged.append(frame.data["percent"])
        took = time.monotonic() - began
    assert merged == sorted(merged)
    assert len(merged) - 1 <= took * 4 + 2
    assert merged[-1] == 30


async def test_ended_tasks_and_files_do_not_raise_the_rate_of_progress(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    """All events of twenty tasks arrive at once: each has progress, a file and an end with progress."""
    job, worker = await start_book_job(web, 20), ManualWorker(conn)
    tasks = await worker.claim_tasks(20)
    async with open_event_stream(web, f"/api/jobs/{job}/events", ANN) as stream:
        await read_first_frame(stream, "snapshot")
        began = time.monotonic()
        async with conn.transaction():
            for place, task in enumerate(tasks):
                await report_progress(conn, task, 50)
                await save_file(conn, task, f"{place}.txt")
                await worker.finish_task(task)
        frames, last_percent = [], 0.0
        while last_percent < 95:
            frame = await stream.read_next()
            assert frame is not None
            frames.append(frame)
            last_percent = frame.data["percent"] if frame.event == "progress" else last_percent
        took = time.monotonic() - began
    names = [frame.event for frame in frames]
    assert (names.count("task"), names.count("artifact")) == (20, 20)
    assert names.count("progress") <= took * 4 + 2
    ids = [int(frame.id) for frame in frames if frame.id]
    assert ids == sorted(set(ids))


async def read_whole_stream(
    web: httpx.AsyncClient, path: str, headers: dict[str, str], after: str | None
) -> list[StreamFrame]:
    """Connect as a browser that has the frames up to `after`, and read up to the end."""
    resumed = headers if after is None else {**headers, "last-event-id": after}
    async with open_event_stream(web, path, resumed) as stream:
        assert stream.response.status_code == 200, after
        return await stream.read_until("end")


@pytest.mark.parametrize("files", [0, 2])
async def test_a_client_that_lost_the_end_receives_it_wherever_it_was_cut(
    web: httpx.AsyncClient, conn: Connection, files: int
) -> None:
    """204 says that a client has everything. It must not be said to a client without the end."""
    job, worker = await start_book_job(web, 1), ManualWorker(conn)
    path = f"/api/jobs/{job}/events"
    async with open_event_stream(web, path, ANN) as stream:
        live = [await stream.read_next()]
        await worker.finish_task(await worker.claim_one_task())
        last = await worker.claim_one_task()
        for place in range(files):
            await save_file(conn, last, f"{place}.txt")
        await worker.finish_task(last)
        live += await stream.read_until("end")
    for frames in (live, await read_whole_stream(web, path, ANN, None)):
        seen: str | None = None
        for frame in frames[:-1]:
            assert frame is not None
            seen = frame.id or seen
            resumed = await read_whole_stream(web, path, ANN, seen)
            assert len(resumed[-1].data["artifacts"]) == files
        end = frames[-1]
        assert end is not None
        over = await web.get(path, headers={**ANN, "last-event-id": end.id or ""})
        assert over.status_code == 204
    assert (await read_whole_stream(web, path, ANN, "999"))[0].data["resync"] is True


async def test_the_end_of_a_job_without_events_is_not_lost(web: httpx.AsyncClient, conn: Connection) -> None:
    job, worker = await submit_job(conn), ManualWorker(conn)
    path = f"/api/jobs/{job}/events"
    async with open_event_stream(web, path, SERVICE) as stream:
        snapshot = await stream.read_next()
        assert snapshot is not None
    await worker.finish_task(await worker.claim_one_task(), body=5)
    assert (await read_whole_stream(web, path, SERVICE, snapshot.id))[-1].data["output"] == 5


async def test_a_ticket_works_once_and_its_cookie_allows_reconnecting(web: httpx.AsyncClient) -> None:
    job, other = await start_book_job(web), await start_book_job(web)
    ticket = (await web.post(f"/api/jobs/{job}/ticket", headers=ANN)).json()["ticket"]
    assert (await web.get(f"/api/jobs/{other}/events?ticket={ticket}")).status_code == 401
    async with open_event_stream(web, f"/api/jobs/{job}/events?ticket={ticket}") as stream:
        await read_first_frame(stream, "snapshot")
        cookie = stream.response.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert f"Path=/api/jobs/{job}/events" in cookie
    web.cookies.clear()
    assert (await web.get(f"/api/jobs/{job}/events?ticket={ticket}")).status_code == 401
    cookie_header = {"cookie": cookie.partition(";")[0]}
    async with open_event_stream(web, f"/api/jobs/{job}/events?ticket={ticket}", cookie_header) as stream:
        await read_first_frame(stream, "snapshot")
    assert (await web.get(f"/api/jobs/{other}/events", headers=cookie_header)).status_code == 401
    assert (await web.get(f"/api/jobs/{job}", headers=cookie_header)).status_code == 401


async def test_a_stream_ends_when_its_token_expires(web: httpx.AsyncClient) -> None:
    job = await start_book_job(web)
    short = bearer_headers(make_token("ann", exp=time.time() + 2))
    async with open_event_stream(web, f"/api/jobs/{job}/events", short) as stream:
        await read_first_frame(stream, "snapshot")
        assert (await read_first_frame(stream, "access_ended"))["reason"] == "expired"
        assert await stream.read_next() is None


async def test_open_streams_count_against_the_limit_until_they_close(
    db: Database, api_settings: Settings
) -> None:
    app = create_app(replace(api_settings, user_streams=2), database=db, job_types=[book_job])
    hub = app.state.holdfast.event_hub
    async with serve_app(app) as base, httpx.AsyncClient(base_url=base) as web:
        job = await start_book_job(web)
        async with (
            open_event_stream(web, f"/api/jobs/{job}/events", ANN) as one,
            open_event_stream(web, f"/api/jobs/{job}/events", ANN) as two,
        ):
            await read_first_frame(one, "snapshot")
            await read_first_frame(two, "snapshot")
            rejected = await web.get(f"/api/jobs/{job}/events", headers=ANN)
            assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "5")
            async with open_event_stream(web, f"/api/jobs/{job}/events", SERVICE) as third:
                await read_first_frame(third, "snapshot")
        await wait_until(lambda: hub.subscription_count == 0 and hub.open_streams == {}, within=TIMEOUT)


@pytest.mark.parametrize("listen", ["auto", "off"])
async def test_many_streams_share_one_listening_connection(
    db: Database, api_settings: Settings, conn: Connection, listen: str
) -> None:
    app = create_app(
        replace(api_settings, listen=listen, user_streams=100),  # type: ignore[arg-type]
        database=db,
        job_types=[book_job],
    )
    worker = ManualWorker(conn)
    async with serve_app(app) as base, httpx.AsyncClient(base_url=base, limits=httpx.Limits()) as web:
        jobs = [await start_book_job(web, 3) for _ in range(5)]

        async def watch(job: str) -> list[int]:
            async with open_event_stream(web, f"/api/jobs/{job}/events", ANN) as stream:
                return [int(frame.id) for frame in await stream.read_until("end", 60) if frame.id]

        watchers = [asyncio.create_task(watch(job)) for job in jobs for _ in range(10)]
        await wait_until(lambda: app.state.holdfast.event_hub.subscription_count == 50, within=TIMEOUT)
        while tasks := await worker.claim_tasks(5):
            for task in tasks:
                await worker.finish_task(task)
        for ids in await asyncio.gather(*watchers):
            assert ids == sorted(set(ids))
            assert ids[-1] - ids[0] == len(ids) - 1
        names = await conn.fetch("select query from pg_stat_activity where datname = current_database()")
        assert len([row for row in names if "listen" in row["query"].lower()]) <= 1


async def test_a_service_watches_a_job_without_owner_to_its_end(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job: UUID = await submit_job(conn)
    worker = ManualWorker(conn)
    async with open_event_stream(web, f"/api/jobs/{job}/events", SERVICE) as stream:
        await read_first_frame(stream, "snapshot")
        await worker.finish_task(await worker.claim_one_task(), body=5)
        assert (await read_first_frame(stream, "end"))["output"] == 5


async def save_file(conn: Connection, task: LeasedTask, name: str) -> None:
    staged = await artifacts.stage_artifact(conn, task, {"name": name, "content_type": "text/plain"})
    await artifacts.record_artifact_upload(conn, staged.id, task, size=3, sha256="0" * 64, meta={})


async def test_a_file_has_one_event_when_it_becomes_visible(web: httpx.AsyncClient, conn: Connection) -> None:
    job, worker = await start_book_job(web, 1), ManualWorker(conn)
    async with open_event_stream(web, f"/api/jobs/{job}/events", ANN) as stream:
        await read_first_frame(stream, "snapshot")
        page = await worker.claim_one_task()
        await save_file(conn, page, "a.txt")
        await save_file(conn, page, "b.txt")
        await worker.finish_task(page)
        frames = await stream.read_until("artifact")
        file_frames = [frames[-1], await stream.read_next()]
        assert [frame.event for frame in frames] == ["status", "task", "progress", "artifact"]
        last = await worker.claim_one_task()
        await save_file(conn, last, "whole.txt")
        await worker.finish_task(last)
        rest = await stream.read_until("end")
    names = [
        frame.data["name"]
        for frame in [*file_frames, *rest]
        if frame is not None and frame.event == "artifact"
    ]
    assert names == ["a.txt", "b.txt", "whole.txt"]
    assert [file["name"] for file in rest[-1].data["artifacts"]] == names
    # A client that reconnects after the first file gets the second file and the rest.
    back = {**ANN, "last-event-id": str(file_frames[0].id)}  # type: ignore[union-attr]
    async with open_event_stream(web, f"/api/jobs/{job}/events", back) as stream:
        again = await stream.read_until("end")
    assert [f.data["name"] for f in again if f.event == "artifact"] == ["b.txt", "whole.txt"]
    ids = [int(frame.id) for frame in again if frame.id]
    assert ids == sorted(ids)


@pytest.mark.parametrize("owner", ["ann", None])
async def test_file_events_of_a_single_task_job_come_before_the_end(
    web: httpx.AsyncClient, conn: Connection, owner: str | None
) -> None:
    job: UUID = await submit_job(conn, owner=owner)
    worker = ManualWorker(conn)
    async with open_event_stream(web, f"/api/jobs/{job}/events", SERVICE) as stream:
        await read_first_frame(stream, "snapshot")
        task = await worker.claim_one_task()
        await report_progress(conn, task, 10)  # a job with one stored event stores all of them
        await save_file(conn, task, "a.txt")
        await worker.finish_task(task)
        frames = await stream.read_until("end")
    assert [frame.event for frame in frames][-2:] == ["artifact", "end"]
    after = {**SERVICE, "last-event-id": str(frames[-1].id)}
    assert (await web.get(f"/api/jobs/{job}/events", headers=after)).status_code == 204


async def test_a_client_watches_a_batch_to_its_end_after_reconnecting(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    batch = (await web.post("/api/batches", json={"name": "b"}, headers=ANN)).json()["id"]
    for _ in range(3):
        await submit_job(conn, owner="ann", batch=batch, attempts=1)
    worker = ManualWorker(conn)
    path = f"/api/batches/{batch}/events"
    async with open_event_stream(web, path, ANN) as stream:
        snapshot = await read_first_frame(stream, "snapshot")
        assert (snapshot["v"], snapshot["status"], snapshot["total"], snapshot["name"]) == (2, "open", 3, "b")
        await web.post(f"/api/batches/{batch}/close", headers=ANN)
        assert (await read_first_frame(stream, "progress"))["status"] == "running"
        await worker.finish_task(await worker.claim_one_task())
        frame = await stream.read_next()
        assert frame is not None
        assert (frame.data["ended"], frame.data["percent"]) == (1, 33.3)
    await worker.finish_task(await worker.claim_one_task(), "fail", {"type": "E", "message": "m"})
    ticket = (await web.post(f"/api/batches/{batch}/ticket", headers=ANN)).json()["ticket"]
    async with open_event_stream(web, f"{path}?after={frame.id}&ticket={ticket}") as stream:
        assert await read_first_frame(stream, "progress") == {
            "status": "running",
            "percent": 66.7,
            "total": 3,
            "ended": 2,
            "failed": 1,
            "cancelled": 0,
        }
        await worker.finish_task(await worker.claim_one_task())
        end = (await stream.read_until("end"))[-1]
        assert (end.data["status"], end.data["ended"], end.data["failed"]) == ("failed", 3, 1)
        assert await stream.read_next() is None
    over = await web.get(path, headers={**ANN, "last-event-id": str(end.id)})
    assert over.status_code == 204
    async with open_event_stream(web, path, SERVICE) as stream:
        assert [frame.event for frame in await stream.read_until("end")] == ["snapshot", "end"]
    assert (await web.get(path, headers=bearer_headers(make_token("bob")))).status_code == 404
    closed_again = (await web.post(f"/api/batches/{batch}/close", headers=ANN)).json()
    assert closed_again["event_seq"] == int(end.id or 0)


async def test_users_see_every_timeout_under_the_same_error_type(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job: UUID = await submit_job(conn, owner="ann", attempts=1)
    worker = ManualWorker(conn)
    error = {"type": "TimeoutError", "message": "10.0.0.3:5432 did not answer", "traceback": "t"}
    await worker.finish_task(await worker.claim_one_task(), "fail", error)
    job_view = (await web.get(f"/api/jobs/{job}", headers=ANN)).json()
    expected_error = {"type": "TimedOut", "message": "This took too long and was stopped."}
    assert job_view["error"] == expected_error
    async with open_event_stream(web, f"/api/jobs/{job}/events", ANN) as stream:
        assert "10.0.0.3" not in str([frame.data for frame in await stream.read_until("end")])
