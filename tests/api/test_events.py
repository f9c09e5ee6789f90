"""Event streams on a real port: snapshot first, each event once and in order, through cuts, to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import httpx
import pytest
from books import KEY, book
from callers import Stream, bearer, served, service_key, token, watching
from hands import Hand, submit
from starlette.applications import Starlette

from holdfast.engine import artifacts
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import Claimed
from holdfast.server import create_app
from holdfast.settings import Settings
from holdfast.testing import eventually

SOON = timedelta(seconds=60)
ANN, SERVICE = bearer(token("ann")), bearer(KEY)


@pytest.fixture
async def web(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    async with served(app) as base, httpx.AsyncClient(base_url=base) as client:
        yield client


async def start(web: httpx.AsyncClient, count: int = 2) -> str:
    body = {"type": "book", "params": {"count": count}}
    return str((await web.post("/api/jobs/start", json=body, headers=ANN)).json()["id"])


async def report(conn: Connection, task: Claimed, percent: float, phase: str = "work") -> None:
    await conn.execute(
        "select holdfast.progress($1, $2, $3, $4, $5)", task.id, task.attempt, task.nonce, percent, phase
    )


async def first(stream: Stream, event: str) -> dict[str, object]:
    frame = await stream.next()
    assert frame is not None
    assert frame.event == event
    return dict(frame.data)


async def test_a_job_from_its_snapshot_to_its_end(web: httpx.AsyncClient, conn: Connection) -> None:
    job, hand = await start(web, 1), Hand(conn)
    async with watching(web, f"/api/jobs/{job}/events", ANN) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["x-accel-buffering"] == "no"
        snapshot = await first(stream, "snapshot")
        assert (snapshot["v"], snapshot["job"], snapshot["state"], snapshot["total"]) == (1, job, "queued", 2)
        page = await hand.one()
        assert (await first(stream, "state"))["state"] == "running"
        await report(conn, page, 50)
        progress = await first(stream, "progress")
        assert (progress["percent"], progress["phase"]) == (25, "work")
        await hand.finish(page)
        assert await first(stream, "task") == {"name": "page", "state": "succeeded"}
        await hand.finish(await hand.one(), body=7)
        seen = await stream.until("end")
        assert (seen[-1].data["state"], seen[-1].data["result"], seen[-1].data["percent"]) == (
            "succeeded",
            7,
            100,
        )
        assert await stream.next() is None
    again = await web.get(f"/api/jobs/{job}/events", headers={**ANN, "last-event-id": seen[-1].id or ""})
    assert again.status_code == 204
    async with watching(web, f"/api/jobs/{job}/events", ANN) as stream:
        assert [frame.event for frame in await stream.until("end")] == ["snapshot", "end"]


async def test_what_happened_during_a_cut_is_told_afterwards_and_nothing_twice(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job, hand = await start(web, 6), Hand(conn)
    ids: list[int] = []
    after = ""
    tasks = await hand.take(6)
    for task in tasks:
        headers = {**ANN, "last-event-id": after} if after else ANN
        async with watching(web, f"/api/jobs/{job}/events", headers) as stream:
            frame = await stream.next()
            assert frame is not None
            assert (frame.event == "snapshot") == (not after)
            while frame is not None and frame.id is None:
                frame = await stream.next()
            assert frame is not None
            after = frame.id or ""
            ids.append(int(after))
        await hand.finish(task)
    async with watching(web, f"/api/jobs/{job}/events?after={after}", ANN) as stream:
        await hand.finish(await hand.one())
        ids += [int(frame.id) for frame in await stream.until("end") if frame.id]
    assert ids == sorted(set(ids))
    assert ids == list(range(ids[0], ids[-1] + 1))


async def test_an_id_that_is_no_longer_kept_starts_over(web: httpx.AsyncClient, conn: Connection) -> None:
    job, hand = await start(web), Hand(conn)
    for task in await hand.take(2):
        await hand.finish(task)
    await conn.execute("delete from holdfast.events where seq < 3")
    async with watching(web, f"/api/jobs/{job}/events", {**ANN, "last-event-id": "1"}) as stream:
        assert (await first(stream, "snapshot"))["resync"] is True
    async with watching(web, f"/api/jobs/{job}/events", {**ANN, "last-event-id": "999"}) as stream:
        assert (await first(stream, "snapshot"))["resync"] is True
    assert (await web.get(f"/api/jobs/{job}/events?after=x", headers=ANN)).status_code == 422


async def test_progress_is_merged_and_the_last_one_is_sent(web: httpx.AsyncClient, conn: Connection) -> None:
    job, hand = await start(web, 1), Hand(conn)
    page = await hand.one()
    async with watching(web, f"/api/jobs/{job}/events", ANN) as stream:
        await first(stream, "snapshot")
        began = time.monotonic()
        for percent in range(1, 61):
            await report(conn, page, percent)
        await hand.finish(page)
        seen = await stream.until("task")
        took = time.monotonic() - began
    merged = [frame.data["percent"] for frame in seen if frame.event == "progress"]
    assert merged == sorted(merged)
    assert len(merged) <= took * 4 + 2
    assert merged[-1] == 30


async def test_a_ticket_opens_once_and_its_pass_comes_back(web: httpx.AsyncClient) -> None:
    job, other = await start(web), await start(web)
    ticket = (await web.post(f"/api/jobs/{job}/ticket", headers=ANN)).json()["ticket"]
    assert (await web.get(f"/api/jobs/{other}/events?ticket={ticket}")).status_code == 401
    async with watching(web, f"/api/jobs/{job}/events?ticket={ticket}") as stream:
        await first(stream, "snapshot")
        cookie = stream.response.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert f"Path=/api/jobs/{job}/events" in cookie
    web.cookies.clear()
    assert (await web.get(f"/api/jobs/{job}/events?ticket={ticket}")).status_code == 401
    comes_back = {"cookie": cookie.partition(";")[0]}
    async with watching(web, f"/api/jobs/{job}/events?ticket={ticket}", comes_back) as stream:
        await first(stream, "snapshot")
    assert (await web.get(f"/api/jobs/{other}/events", headers=comes_back)).status_code == 401
    assert (await web.get(f"/api/jobs/{job}", headers=comes_back)).status_code == 401


async def test_a_stream_ends_with_the_token_that_opened_it(web: httpx.AsyncClient) -> None:
    job = await start(web)
    short = bearer(token("ann", exp=time.time() + 2))
    async with watching(web, f"/api/jobs/{job}/events", short) as stream:
        await first(stream, "snapshot")
        assert await stream.next() is None


async def test_streams_are_counted_and_given_back(db: Database, api_settings: Settings) -> None:
    app = create_app(replace(api_settings, user_streams=2), database=db, job_types=[book])
    hub = app.state.holdfast.listener
    async with served(app) as base, httpx.AsyncClient(base_url=base) as web:
        job = await start(web)
        async with (
            watching(web, f"/api/jobs/{job}/events", ANN) as one,
            watching(web, f"/api/jobs/{job}/events", ANN) as two,
        ):
            await first(one, "snapshot")
            await first(two, "snapshot")
            refused = await web.get(f"/api/jobs/{job}/events", headers=ANN)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            async with watching(web, f"/api/jobs/{job}/events", SERVICE) as third:
                await first(third, "snapshot")
        await eventually(lambda: hub.streams == 0 and hub.places == {}, within=SOON)


@pytest.mark.parametrize("listen", ["auto", "off"])
async def test_many_streams_share_one_reader_and_one_listener(
    db: Database, api_settings: Settings, conn: Connection, listen: str
) -> None:
    app = create_app(
        replace(api_settings, listen=listen, user_streams=100),  # type: ignore[arg-type]
        database=db,
        types=[book],
    )
    hand = Hand(conn)
    async with served(app) as base, httpx.AsyncClient(base_url=base, limits=httpx.Limits()) as web:
        jobs = [await start(web, 3) for _ in range(5)]

        async def watch(job: str) -> list[int]:
            async with watching(web, f"/api/jobs/{job}/events", ANN) as stream:
                return [int(frame.id) for frame in await stream.until("end", 60) if frame.id]

        watchers = [asyncio.create_task(watch(job)) for job in jobs for _ in range(10)]
        await eventually(lambda: app.state.holdfast.listener.streams == 50, within=SOON)
        while tasks := await hand.take(5):
            for task in tasks:
                await hand.finish(task)
        for ids in await asyncio.gather(*watchers):
            assert ids == sorted(set(ids))
            assert ids[-1] - ids[0] == len(ids) - 1
        names = await conn.fetch("select query from pg_stat_activity where datname = current_database()")
        assert len([row for row in names if "listen" in row["query"].lower()]) <= 1


async def test_a_job_that_nobody_owns_is_watched_to_its_end_too(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job: UUID = await submit(conn)
    hand = Hand(conn)
    async with watching(web, f"/api/jobs/{job}/events", SERVICE) as stream:
        await first(stream, "snapshot")
        await hand.finish(await hand.one(), body=5)
        assert (await first(stream, "end"))["result"] == 5


async def test_a_revoked_key_ends_its_streams(
    web: httpx.AsyncClient, db: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.event_streams.PING_INTERVAL_S", 0.2)
    monkeypatch.setattr("holdfast.server.api.key_verification.REVOCATION_CHECK_INTERVAL_S", 0.2)
    job, key = await start(web), await service_key(db, "jobs")
    async with watching(web, f"/api/jobs/{job}/events", bearer(key)) as stream:
        await first(stream, "snapshot")
        await conn.execute("select holdfast.revoke_service_key($1)", key[:11])
        assert await stream.next() is None


async def saved(conn: Connection, task: Claimed, name: str) -> None:
    staged = await artifacts.stage_artifact(conn, task, {"name": name, "content_type": "text/plain"})
    await artifacts.record_artifact(conn, staged.id, task, size=3, sha256="0" * 64, meta={})


async def test_a_file_is_told_when_it_becomes_visible_and_once(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job, hand = await start(web, 1), Hand(conn)
    async with watching(web, f"/api/jobs/{job}/events", ANN) as stream:
        await first(stream, "snapshot")
        page = await hand.one()
        await saved(conn, page, "a.txt")
        await saved(conn, page, "b.txt")
        await hand.finish(page)
        seen = await stream.until("artifact")
        told = [seen[-1], await stream.next()]
        assert [frame.event for frame in seen] == ["state", "task", "progress", "artifact"]
        last = await hand.one()
        await saved(conn, last, "whole.txt")
        await hand.finish(last)
        rest = await stream.until("end")
    names = [
        frame.data["name"] for frame in [*told, *rest] if frame is not None and frame.event == "artifact"
    ]
    assert names == ["a.txt", "b.txt", "whole.txt"]
    assert rest[-1].data["artifacts"] == 3
    # Whoever was cut off between the two files is told the second one and the rest.
    back = {**ANN, "last-event-id": str(told[0].id)}  # type: ignore[union-attr]
    async with watching(web, f"/api/jobs/{job}/events", back) as stream:
        again = await stream.until("end")
    assert [f.data["name"] for f in again if f.event == "artifact"] == ["b.txt", "whole.txt"]
    ids = [int(frame.id) for frame in again if frame.id]
    assert ids == sorted(ids)


@pytest.mark.parametrize("owner", ["ann", None])
async def test_the_files_of_a_job_of_one_task_are_told_before_its_end(
    web: httpx.AsyncClient, conn: Connection, owner: str | None
) -> None:
    job: UUID = await submit(conn, owner=owner)
    hand = Hand(conn)
    async with watching(web, f"/api/jobs/{job}/events", SERVICE) as stream:
        await first(stream, "snapshot")
        task = await hand.one()
        await report(conn, task, 10)  # a job that has an event has all of them
        await saved(conn, task, "a.txt")
        await hand.finish(task)
        seen = await stream.until("end")
    assert [frame.event for frame in seen][-2:] == ["artifact", "end"]
    after = {**SERVICE, "last-event-id": str(seen[-1].id)}
    assert (await web.get(f"/api/jobs/{job}/events", headers=after)).status_code == 204


async def test_a_batch_is_watched_through_a_cut_to_its_end(web: httpx.AsyncClient, conn: Connection) -> None:
    batch = (await web.post("/api/batches", json={"name": "b"}, headers=ANN)).json()["id"]
    for _ in range(3):
        await submit(conn, owner="ann", batch=batch, attempts=1)
    hand = Hand(conn)
    path = f"/api/batches/{batch}/events"
    async with watching(web, path, ANN) as stream:
        snapshot = await first(stream, "snapshot")
        assert (snapshot["v"], snapshot["state"], snapshot["total"], snapshot["name"]) == (1, "open", 3, "b")
        await web.post(f"/api/batches/{batch}/close", headers=ANN)
        assert (await first(stream, "progress"))["state"] == "running"
        await hand.finish(await hand.one())
        frame = await stream.next()
        assert frame is not None
        assert (frame.data["ended"], frame.data["percent"]) == (1, 33.3)
    await hand.finish(await hand.one(), "fail", {"type": "E", "message": "m"})
    ticket = (await web.post(f"/api/batches/{batch}/ticket", headers=ANN)).json()["ticket"]
    async with watching(web, f"{path}?after={frame.id}&ticket={ticket}") as stream:
        assert await first(stream, "progress") == {
            "state": "running",
            "percent": 66.7,
            "total": 3,
            "ended": 2,
            "failed": 1,
            "cancelled": 0,
        }
        await hand.finish(await hand.one())
        end = (await stream.until("end"))[-1]
        assert (end.data["state"], end.data["ended"], end.data["failed"]) == ("failed", 3, 1)
        assert await stream.next() is None
    over = await web.get(path, headers={**ANN, "last-event-id": str(end.id)})
    assert over.status_code == 204
    async with watching(web, path, SERVICE) as stream:
        assert [frame.event for frame in await stream.until("end")] == ["snapshot", "end"]
    assert (await web.get(path, headers=bearer(token("bob")))).status_code == 404
    closed_again = (await web.post(f"/api/batches/{batch}/close", headers=ANN)).json()
    assert closed_again["event_seq"] == int(end.id or 0)


async def test_users_do_not_read_what_a_timeout_was_called_inside(
    web: httpx.AsyncClient, conn: Connection
) -> None:
    job: UUID = await submit(conn, owner="ann", attempts=1)
    hand = Hand(conn)
    inside = {"type": "TimeoutError", "message": "10.0.0.3:5432 did not answer", "traceback": "t"}
    await hand.finish(await hand.one(), "fail", inside)
    shown = (await web.get(f"/api/jobs/{job}", headers=ANN)).json()
    told = {"type": "TimedOut", "message": "This took too long and was stopped."}
    assert shown["error"] == told
    async with watching(web, f"/api/jobs/{job}/events", ANN) as stream:
        assert "10.0.0.3" not in str([frame.data for frame in await stream.until("end")])
