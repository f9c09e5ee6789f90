"""Sessions of users on the pages of systems: sign in with a token, use the cookie, sign out."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from api_clients import ISSUER, SECRET, bearer_headers, make_token, open_event_stream, serve_app

from holdfast import Client, Ctx, task
from holdfast.engine.connection import Connection, Database
from holdfast.server import create_app
from holdfast.server.api.user_session_store import CACHE_LIFETIME_S, USER_SESSION_COOKIE
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock, wait_until

SERVICE_KEY = "a service key for the tests of user sessions"


@task
async def do_nothing(ctx: Ctx) -> None:
    return None


@pytest.fixture
def session_settings(settings: Settings) -> Settings:
    return replace(
        settings,
        jwt_secret=Secret(SECRET),
        jwt_issuer=ISSUER,
        service_key=Secret(SERVICE_KEY),
        api_rate=10_000,
    )


@pytest.fixture
async def site(url: Secret, session_settings: Settings) -> AsyncGenerator[str]:
    async with (
        Database(url, session_settings) as database,
        serve_app(create_app(session_settings, database=database)) as address,
    ):
        yield address


def open_browser(site: str) -> httpx.AsyncClient:
    """Return a client that keeps cookies and sends what browsers send with requests of a page."""
    return httpx.AsyncClient(base_url=site, headers={"sec-fetch-site": "same-origin"})


async def sign_in(browser: httpx.AsyncClient, user: str, **claims: object) -> httpx.Response:
    return await browser.post("/api/session", headers=bearer_headers(make_token(user, **claims)))


async def test_a_cookie_takes_the_place_of_the_token_until_the_user_signs_out(
    site: str, conn: Connection
) -> None:
    ann = str(uuid.uuid4())
    async with open_browser(site) as browser, open_browser(site) as other:
        assert (await browser.get("/api/usage")).status_code == 401
        response = await sign_in(browser, ann)
        assert (response.status_code, response.json()["owner"]) == (201, ann)
        assert "HttpOnly; SameSite=Strict" in response.headers["set-cookie"]
        assert (await browser.get("/api/usage")).status_code == 200
        await sign_in(other, ann)
        stolen = browser.cookies[USER_SESSION_COOKIE]
        stored = await conn.fetchval("select string_agg(s::text, ' ') from holdfast.user_sessions s")
        assert stolen not in stored
        assert (await browser.delete("/api/session")).status_code == 204
        assert (await browser.get("/api/usage")).status_code == 401
        browser.cookies.set(USER_SESSION_COOKIE, stolen)  # a copy of the cookie opens nothing any more
        assert (await browser.get("/api/usage")).status_code == 401
        assert (await other.get("/api/usage")).status_code == 200
        assert await conn.fetchval("select count(*) from holdfast.user_sessions") == 1


async def test_other_sites_services_and_cookies_start_no_session(site: str) -> None:
    ann = str(uuid.uuid4())
    async with open_browser(site) as browser:
        key = await browser.post("/api/session", headers=bearer_headers(SERVICE_KEY))
        assert key.status_code == 403
        assert (await browser.post("/api/session")).status_code == 401
        await sign_in(browser, ann)
        assert (await browser.post("/api/session")).status_code == 403  # a session does not renew itself
        foreign = await browser.delete("/api/session", headers={"sec-fetch-site": "cross-site"})
        assert foreign.status_code == 403
        assert (await browser.get("/api/usage")).status_code == 200
        for cookie in ("", "x", "x" * 5000, "\x7f"):
            browser.cookies.set(USER_SESSION_COOKIE, cookie)
            assert (await browser.get("/api/usage")).status_code in (400, 401)


async def test_a_session_ends_with_its_token_and_after_twelve_hours(
    site: str, clock: Clock, conn: Connection
) -> None:
    ann = str(uuid.uuid4())
    async with open_browser(site) as short, open_browser(site) as long:
        await sign_in(short, ann, exp=int(time.time()) + 3600)
        await sign_in(long, ann, exp=4_000_000_000)
        await clock.advance(timedelta(hours=2))
        await wait_until(lambda: _is_refused(short), within=timedelta(seconds=30 * CACHE_LIFETIME_S))
        assert (await long.get("/api/usage")).status_code == 200
        await clock.advance(timedelta(hours=11))
        await wait_until(lambda: _is_refused(long), within=timedelta(seconds=30 * CACHE_LIFETIME_S))
    await conn.execute("select holdfast.tick_sessions(100)")
    assert await conn.fetchval("select count(*) from holdfast.user_sessions") == 0


async def _is_refused(browser: httpx.AsyncClient) -> bool:
    return (await browser.get("/api/usage")).status_code == 401


async def test_a_user_has_twenty_sessions_and_erasure_ends_them(site: str, conn: Connection) -> None:
    ann, ben = str(uuid.uuid4()), str(uuid.uuid4())
    async with open_browser(site) as browser:
        for user in (ben, *[ann] * 25):
            assert (await sign_in(browser, user)).status_code == 201
    count = "select count(*) from holdfast.user_sessions where owner = $1"
    assert (await conn.fetchval(count, ann), await conn.fetchval(count, ben)) == (20, 1)
    await conn.execute("select holdfast.delete_owner_settings($1)", ann)
    assert (await conn.fetchval(count, ann), await conn.fetchval(count, ben)) == (0, 1)


async def test_streams_end_when_the_session_ends_on_another_process(
    site: str, url: Secret, session_settings: Settings, conn: Connection
) -> None:
    ann = str(uuid.uuid4())
    async with Client(url.reveal(), settings=session_settings) as client:
        job = await client.submit(do_nothing(), owner=ann)
    async with open_browser(site) as browser:
        await sign_in(browser, ann)
        async with open_event_stream(browser, f"/api/jobs/{job.id}/events", {}) as stream:
            await stream.read_until("snapshot")
            await conn.execute("select holdfast.end_user_session(id) from holdfast.user_sessions")
            last = (await stream.read_until("access_ended"))[-1]
    assert last.data["reason"] == "revoked"
