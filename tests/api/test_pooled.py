"""The API through PgBouncer in transaction mode: nobody sees what the last user of a connection saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from books import KEY, book
from callers import bearer, served, token, watching
from hands import Hand
from pooler import pooler

from holdfast.engine.connection import Connection, Database, connected
from holdfast.errors import DatabaseAwayError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.testing import eventually

USERS = ("ann", "bob", "eve")


@pytest.fixture
async def pooled(url: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    async def answers() -> bool:
        try:
            async with connected(through, settings):
                return True
        except DatabaseAwayError:
            return False

    with pooler(url, "transaction", size=2) as through:
        await eventually(answers, what="the pooler answers")
        yield through


async def test_users_share_connections_and_nothing_else(
    pooled: Secret, api_settings: Settings, conn: Connection
) -> None:
    async with Database(pooled, api_settings) as database:
        app = create_app(api_settings, database=database, job_types=[book])
        async with served(app) as base, httpx.AsyncClient(base_url=base, timeout=60) as web:
            headers = {user: bearer(token(user)) for user in USERS}
            for user in USERS:
                made = await web.post("/api/jobs/start", json={"type": "book"}, headers=headers[user])
                assert made.status_code == 202, made.text

            async def look(number: int) -> set[str]:
                user = USERS[number % len(USERS)]
                if number % 5 == 0:  # an abort in between
                    await web.post("/api/jobs/start", json={"type": "no such"}, headers=headers[user])
                if number % 7 == 0:  # and a service, which sees all
                    listed = await web.get("/api/jobs", headers=bearer(KEY))
                    assert len(listed.json()["jobs"]) == len(USERS)
                listed = await web.get("/api/jobs", headers=headers[user])
                return {job["owner"] for job in listed.json()["jobs"]} ^ {user}

            assert set().union(*await asyncio.gather(*(look(number) for number in range(120)))) == set()
            job = (await web.get("/api/jobs", headers=headers["ann"])).json()["jobs"][0]["id"]
            hand = Hand(conn)
            async with watching(web, f"/api/jobs/{job}/events", headers["ann"]) as stream:
                assert (await stream.until("snapshot"))[0].data["state"] == "queued"
                while tasks := await hand.take(9):
                    for task in tasks:
                        await hand.finish(task, body=1)
                assert (await stream.until("end"))[-1].data["state"] == "succeeded"
