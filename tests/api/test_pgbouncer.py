"""The API behind PgBouncer in transaction mode: users who share connections see only their own jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from api_clients import bearer_headers, make_token, open_event_stream, serve_app
from book_app import SERVICE_KEY, book_job
from manual_worker import ManualWorker
from pooler import pooler

from holdfast.engine.connection import Connection, Database, open_connection
from holdfast.errors import DatabaseUnavailableError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

USERS = ("ann", "bob", "eve")


@pytest.fixture
async def pgbouncer_url(url: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    async def accepts_connections() -> bool:
        try:
            async with open_connection(through, settings):
                return True
        except DatabaseUnavailableError:
            return False

    with pooler(url, "transaction", size=2) as through:
        await wait_until(accepts_connections, what="the pooler answers")
        yield through


async def test_users_on_shared_connections_see_only_their_own_jobs(
    pgbouncer_url: Secret, api_settings: Settings, conn: Connection
) -> None:
    async with Database(pgbouncer_url, api_settings) as database:
        app = create_app(api_settings, database=database, job_types=[book_job])
        async with serve_app(app) as base, httpx.AsyncClient(base_url=base, timeout=60) as web:
            headers = {user: bearer_headers(make_token(user)) for user in USERS}
            for user in USERS:
                created = await web.post("/api/jobs/start", json={"type": "book"}, headers=headers[user])
                assert created.status_code == 202, created.text

            async def look(number: int) -> set[str]:
                user = USERS[number % len(USERS)]
                if number % 5 == 0:  # a failing request in between
                    await web.post("/api/jobs/start", json={"type": "no such"}, headers=headers[user])
                if number % 7 == 0:  # and a service, which sees all jobs
                    listed = await web.get("/api/jobs", headers=bearer_headers(SERVICE_KEY))
                    assert len(listed.json()["jobs"]) == len(USERS)
                listed = await web.get("/api/jobs", headers=headers[user])
                return {job["owner"] for job in listed.json()["jobs"]} ^ {user}

            assert set().union(*await asyncio.gather(*(look(number) for number in range(120)))) == set()
            job = (await web.get("/api/jobs", headers=headers["ann"])).json()["jobs"][0]["id"]
            worker = ManualWorker(conn)
            async with open_event_stream(web, f"/api/jobs/{job}/events", headers["ann"]) as stream:
                assert (await stream.read_until("snapshot"))[0].data["status"] == "queued"
                while tasks := await worker.claim_tasks(9):
                    for task in tasks:
                        await worker.finish_task(task, body=1)
                assert (await stream.read_until("end"))[-1].data["status"] == "succeeded"
