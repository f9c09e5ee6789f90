"""Event streams end with the right to them: an expired token, a revoked key, on every API process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import httpx
import pytest
from api_clients import (
    bearer_headers,
    create_service_key,
    make_token,
    open_event_stream,
    serve_app,
)
from book_app import SERVICE_KEY, book_job
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.engine.connection import Connection, Database
from holdfast.server import EventStreamResponse, create_app, require_stream_viewer, reserve_stream_slot
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

TIMEOUT = timedelta(seconds=60)
ANN, SERVICE = bearer_headers(make_token("ann")), bearer_headers(SERVICE_KEY)


@pytest.fixture
async def web(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    async with serve_app(app) as base, httpx.AsyncClient(base_url=base) as client:
        yield client


@pytest.fixture
async def second_web(
    settings: Settings, api_settings: Settings, db: Database
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of another API process: an application with its own pool, caches and streams."""
    async with Database(db.url, settings) as database:
        other = create_app(api_settings, database=database, job_types=[book_job])
        async with serve_app(other) as base, httpx.AsyncClient(base_url=base) as client:
            yield client


async def start_book_job(web: httpx.AsyncClient) -> str:
    body = {"type": "book", "params": {"count": 2}}
    return str((await web.post("/api/jobs/start", json=body, headers=ANN)).json()["id"])


async def create_ticket(web: httpx.AsyncClient, job: str, headers: dict[str, str]) -> str:
    response = await web.post(f"/api/jobs/{job}/ticket", headers=headers)
    assert response.status_code == 201, response.text
    return str(response.json()["ticket"])


async def get_pass_cookie(web: httpx.AsyncClient, job: str, headers: dict[str, str]) -> dict[str, str]:
    """Exchange a ticket for the cookie with which a browser reconnects."""
    ticket = await create_ticket(web, job, headers)
    async with open_event_stream(web, f"/api/jobs/{job}/events?ticket={ticket}") as stream:
        cookie: str = stream.response.headers["set-cookie"]
    web.cookies.clear()
    return {"cookie": cookie.partition(";")[0]}


async def run_maintenance(conn: Connection) -> None:
    while json.loads(await conn.fetchval("select holdfast.tick()"))["more"]:
        pass


async def revoke_key(conn: Connection, key: str) -> None:
    assert await conn.fetchval("select holdfast.revoke_service_key($1)", key[:11]) == 1


async def test_a_ticket_of_a_revoked_key_opens_nothing(
    web: httpx.AsyncClient, second_web: httpx.AsyncClient, db: Database, conn: Connection
) -> None:
    job, key = await start_book_job(web), await create_service_key(db, "jobs")
    ticket = await create_ticket(web, job, bearer_headers(key))
    await revoke_key(conn, key)
    for client in (second_web, web):
        assert (await client.get(f"/api/jobs/{job}/events?ticket={ticket}")).status_code == 401


async def test_the_pass_cookie_of_a_revoked_key_opens_nothing(
    web: httpx.AsyncClient, second_web: httpx.AsyncClient, db: Database, conn: Connection
) -> None:
    job, key = await start_book_job(web), await create_service_key(db, "jobs")
    cookie = await get_pass_cookie(web, job, bearer_headers(key))
    async with open_event_stream(second_web, f"/api/jobs/{job}/events", cookie) as stream:
        assert stream.response.status_code == 200
    await revoke_key(conn, key)
    for client in (second_web, web):
        assert (await client.get(f"/api/jobs/{job}/events", headers=cookie)).status_code == 401


async def test_tickets_and_passes_end_with_the_token(web: httpx.AsyncClient, conn: Connection) -> None:
    """Neither a ticket nor its cookie is valid for longer than the token that requested the ticket."""
    job, expiry = await start_book_job(web), time.time() + 30
    short = bearer_headers(make_token("ann", exp=expiry))
    ticket = await create_ticket(web, job, short)
    cookie = await get_pass_cookie(web, job, short)
    latest = "select max(extract(epoch from expires_at))::float8 from holdfast.stream_tickets where kind = $1"
    for kind in ("ticket", "pass"):
        assert await conn.fetchval(latest, kind) <= expiry + 0.001, kind
    await run_maintenance(conn)
    async with open_event_stream(web, f"/api/jobs/{job}/events", cookie) as stream:
        assert stream.response.status_code == 200
    # The database's clock is the one that counts.
    await conn.execute("update holdfast.stream_tickets set expires_at = holdfast.now()")
    assert (await web.get(f"/api/jobs/{job}/events?ticket={ticket}")).status_code == 401
    assert (await web.get(f"/api/jobs/{job}/events", headers=cookie)).status_code == 401
    await run_maintenance(conn)
    assert await conn.fetchval("select count(*) from holdfast.stream_tickets") == 0


async def test_a_stream_with_a_pass_closes_when_the_token_expires(web: httpx.AsyncClient) -> None:
    job = await start_book_job(web)
    short = bearer_headers(make_token("ann", exp=time.time() + 3))
    ticket = await create_ticket(web, job, short)
    async with open_event_stream(web, f"/api/jobs/{job}/events?ticket={ticket}") as stream:
        frames = await stream.read_until("access_ended")
        assert frames[-1].data["reason"] == "expired"
        assert await stream.read_next() is None
        cookie = {"cookie": stream.response.headers["set-cookie"].partition(";")[0]}
    assert (await web.get(f"/api/jobs/{job}/events", headers=cookie)).status_code == 401
    # Requests are accepted a few seconds late, because clocks differ. Streams and tickets are not.
    assert (await web.get(f"/api/jobs/{job}/events", headers=short)).status_code == 401
    assert (await web.post(f"/api/jobs/{job}/ticket", headers=short)).status_code == 401


@pytest.mark.parametrize("credential", ["key", "ticket", "cookie"])
async def test_open_streams_close_on_every_process_when_the_key_is_revoked(
    web: httpx.AsyncClient, second_web: httpx.AsyncClient, db: Database, conn: Connection, credential: str
) -> None:
    job, key = await start_book_job(web), await create_service_key(db, "jobs")
    batch = (await web.post("/api/batches", json={}, headers=SERVICE)).json()["id"]
    path, headers = f"/api/jobs/{job}/events", {}
    if credential == "key":
        headers = bearer_headers(key)
    elif credential == "cookie":
        headers = await get_pass_cookie(web, job, bearer_headers(key))
    else:
        path += f"?ticket={await create_ticket(web, job, bearer_headers(key))}"
    async with (
        open_event_stream(second_web, path, headers) as stream,
        open_event_stream(web, f"/api/batches/{batch}/events", bearer_headers(key)) as batch_stream,
    ):
        await stream.read_until("snapshot")
        await batch_stream.read_until("snapshot")
        await revoke_key(conn, key)
        for each in (stream, batch_stream):
            (last,) = await each.read_until("access_ended")
            assert last.data["reason"] == "revoked"
            assert await each.read_next() is None
    assert (await second_web.get(path, headers=headers)).status_code == 401


async def test_an_expired_key_ends_its_streams(
    web: httpx.AsyncClient, db: Database, conn: Connection
) -> None:
    job, key = await start_book_job(web), await create_service_key(db, "jobs")
    async with open_event_stream(web, f"/api/jobs/{job}/events", bearer_headers(key)) as stream:
        await stream.read_until("snapshot")
        await conn.execute("update holdfast.service_keys set expires_at = holdfast.now()")
        await stream.read_until("access_ended")
        assert await stream.read_next() is None


async def test_other_streams_stay_open_when_a_key_is_revoked(
    web: httpx.AsyncClient, db: Database, conn: Connection
) -> None:
    job = await start_book_job(web)
    revoked, kept = await create_service_key(db, "jobs"), await create_service_key(db, "jobs")
    async with (
        open_event_stream(web, f"/api/jobs/{job}/events", bearer_headers(revoked)) as first,
        open_event_stream(web, f"/api/jobs/{job}/events", bearer_headers(kept)) as second,
        open_event_stream(web, f"/api/jobs/{job}/events", ANN) as third,
        open_event_stream(web, f"/api/jobs/{job}/events", SERVICE) as fourth,
    ):
        for stream in (first, second, third, fourth):
            await stream.read_until("snapshot")
        await revoke_key(conn, revoked)
        await first.read_until("access_ended")
        await web.delete(f"/api/jobs/{job}", headers=ANN)
        for stream in (second, third, fourth):
            assert (await stream.read_until("end"))[-1].data["status"] == "cancelled"


async def test_a_client_that_does_not_read_loses_its_stream_too(
    app: Starlette, web: httpx.AsyncClient, db: Database, conn: Connection
) -> None:
    """The slot of a stream is free again after its key is revoked, also if the client is stuck."""
    job, key = await start_book_job(web), await create_service_key(db, "jobs")
    hub = app.state.holdfast.event_hub
    address = str(web.base_url).removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(address[0], int(address[1]), limit=1024)
    writer.write(
        f"GET /api/jobs/{job}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode()
    )
    await wait_until(lambda: hub.open_streams != {}, within=TIMEOUT)
    await revoke_key(conn, key)
    await wait_until(lambda: hub.open_streams == {}, within=TIMEOUT)
    writer.close()
    assert reader is not None


async def test_what_the_settings_key_opened_ends_when_the_key_changes(
    web: httpx.AsyncClient, db: Database, api_settings: Settings
) -> None:
    job = await start_book_job(web)
    ticket = await create_ticket(web, job, SERVICE)
    cookie = await get_pass_cookie(web, job, SERVICE)
    changed = create_app(
        replace(api_settings, service_key=Secret("another key")), database=db, job_types=[book_job]
    )
    transport = httpx.ASGITransport(changed)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as other:
        assert (await other.get(f"/api/jobs/{job}/events?ticket={ticket}")).status_code == 401
        assert (await other.get(f"/api/jobs/{job}/events", headers=cookie)).status_code == 401
    async with open_event_stream(web, f"/api/jobs/{job}/events", cookie) as stream:
        assert stream.response.status_code == 200


async def test_the_streams_of_a_process_are_checked_by_one_statement(
    app: Starlette, web: httpx.AsyncClient, db: Database, conn: Connection
) -> None:
    job, key = await start_book_job(web), await create_service_key(db, "jobs")
    monitor = app.state.holdfast.access_monitor
    async with (
        open_event_stream(web, f"/api/jobs/{job}/events", bearer_headers(key)) as first,
        open_event_stream(web, f"/api/jobs/{job}/events", bearer_headers(key)) as second,
    ):
        await first.read_until("snapshot")
        await second.read_until("snapshot")
        assert list(monitor.watched_subjects) == [key[:11]]
    await wait_until(lambda: not monitor.watched_subjects, within=TIMEOUT)


async def test_a_request_that_waits_reveals_nothing_after_its_key_is_revoked(
    app: Starlette, web: httpx.AsyncClient, db: Database, conn: Connection
) -> None:
    job, key = await start_book_job(web), await create_service_key(db, "jobs")
    waiting = asyncio.create_task(
        web.get(f"/api/jobs/{job}?wait=25", headers=bearer_headers(key), timeout=60)
    )
    hub = app.state.holdfast.event_hub
    await wait_until(lambda: hub.subscription_count == 1, within=TIMEOUT)
    await revoke_key(conn, key)

    async def is_refused() -> bool:
        return (await web.get(f"/api/jobs/{job}", headers=bearer_headers(key))).status_code == 401

    await wait_until(is_refused, within=TIMEOUT)
    await web.delete(f"/api/jobs/{job}", headers=ANN)
    assert (await waiting).status_code == 401


async def test_streams_of_systems_close_too(db: Database, api_settings: Settings, conn: Connection) -> None:
    """A stream with frames of its own that never asks whether the viewer still has access."""

    async def watch(request: Request) -> Response:
        viewer = await require_stream_viewer(request, UUID(int=1))

        async def generate_frames() -> AsyncGenerator[bytes]:
            yield b"event: hello\ndata: {}\n\n"
            await asyncio.Event().wait()

        return EventStreamResponse(generate_frames(), viewer.headers, reserve_stream_slot(request, viewer))

    app = create_app(api_settings, database=db, routes=[Route("/watch", watch)])
    key = await create_service_key(db, "jobs")
    short = bearer_headers(make_token("ann", exp=time.time() + 3))
    async with serve_app(app) as base, httpx.AsyncClient(base_url=base) as client:
        async with open_event_stream(client, "/watch", bearer_headers(key)) as stream:
            await stream.read_until("hello")
            await revoke_key(conn, key)
            assert await stream.read_next() is None
        async with open_event_stream(client, "/watch", short) as stream:
            await stream.read_until("hello")
            assert await stream.read_next() is None
        assert (await client.get("/watch", headers=short)).status_code == 401
    assert app.state.holdfast.event_hub.open_streams == {}
