"""Dashboard sessions: attacks with stolen, old and chosen cookies on two processes, and their page."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from api_clients import EventStreamReader, create_service_key, serve_app
from dashboard_server import DashboardServer

from holdfast.engine import audit, sessions
from holdfast.engine.connection import Connection, Database
from holdfast.server import create_app
from holdfast.server.dashboard import create_dashboard, create_login_link
from holdfast.server.dashboard.browser_names import describe_browser
from holdfast.server.dashboard.sessions import SESSION_CACHE_LIFETIME_S
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

TIMEOUT = timedelta(seconds=60)
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
SETTINGS_KEY = "the key of the settings"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"


@pytest.fixture
def dashboard_settings(settings: Settings) -> Settings:
    return replace(settings, service_key=Secret(SETTINGS_KEY))


@pytest.fixture
async def first(db: Database, dashboard_settings: Settings) -> AsyncGenerator[str]:
    """The URL of the dashboard of one API process."""
    async with serve_app(create_app(dashboard_settings, database=db, dashboard=create_dashboard)) as base:
        yield f"{base}/dashboard"


@pytest.fixture
async def second(db: Database, dashboard_settings: Settings) -> AsyncGenerator[str]:
    """The URL of the dashboard of another API process, with its own pool and caches."""
    async with Database(db.url, dashboard_settings) as database:
        app = create_app(dashboard_settings, database=database, dashboard=create_dashboard)
        async with serve_app(app) as base:
            yield f"{base}/dashboard"


def create_client(base: str, **cookies: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base, cookies=cookies, timeout=30, headers={"user-agent": FIREFOX})


async def login_with_key(base: str, key: str, **cookies: str) -> str:
    """Sign in with a service key and return the cookie that the server set."""
    async with create_client(base, **cookies) as client:
        response = await client.post("/login", data={"key": key}, headers=SAME_ORIGIN)
        assert response.status_code == 303, response.text[-300:]
        return response.cookies["holdfast_session"]


async def login_with_link(conn: Connection, base: str, name: str, role: str) -> str:
    async with create_client(base) as client:
        response = await client.get(await create_login_link(conn, base, name=name, role=role))
        return response.cookies["holdfast_session"]


async def is_signed_in(base: str, cookie: str) -> bool:
    async with create_client(base, holdfast_session=cookie) as client:
        response = await client.get("/settings")
        assert response.status_code in {200, 303}, response.text[-300:]
        return response.status_code == 200


async def wait_until_signed_out(cookie: str, *bases: str) -> None:
    for base in bases:

        async def is_signed_out(base: str = base) -> bool:
            return not await is_signed_in(base, cookie)

        await wait_until(is_signed_out, within=TIMEOUT)


async def find_form_token(client: httpx.AsyncClient) -> str:
    match = re.search(r'name="token" value="([^"]+)"', (await client.get("/settings")).text)
    assert match is not None
    return match[1]


async def post_form(client: httpx.AsyncClient, path: str, **form: Any) -> httpx.Response:
    form.setdefault("token", await find_form_token(client))
    return await client.post(path, data=form, headers=SAME_ORIGIN)


async def test_a_revoked_key_loses_its_sessions_on_every_process(
    first: str, second: str, db: Database, conn: Connection
) -> None:
    key = await create_service_key(db, "dashboard:operator")
    cookie = await login_with_key(first, key)
    assert await is_signed_in(first, cookie)
    assert await is_signed_in(second, cookie)
    await conn.execute("select holdfast.revoke_service_key($1)", key[:11])
    await wait_until_signed_out(cookie, second, first)
    async with create_client(second, holdfast_session=cookie) as client:
        response = await client.get("/jobs")
        assert "/login?next=" in response.headers["location"]
        assert (await client.get("/live", params={"path": "/jobs"})).status_code == 401
    assert SESSION_CACHE_LIFETIME_S <= 1


async def test_an_expired_key_loses_its_sessions(first: str, db: Database, conn: Connection) -> None:
    cookie = await login_with_key(first, await create_service_key(db, "dashboard:viewer"))
    assert await is_signed_in(first, cookie)
    await conn.execute("update holdfast.service_keys set expires_at = holdfast.now()")
    await wait_until_signed_out(cookie, first)


async def test_a_key_that_was_just_revoked_starts_no_session(
    first: str, db: Database, conn: Connection
) -> None:
    """The process that verified a key caches it for a second. The database knows better."""
    key = await create_service_key(db, "dashboard:admin")
    await login_with_key(first, key)
    await conn.execute("select holdfast.revoke_service_key($1)", key[:11])
    async with create_client(first) as client:
        response = await client.post("/login", data={"key": key}, headers=SAME_ORIGIN)
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


async def test_the_old_cookie_is_useless_after_logout(first: str, second: str, conn: Connection) -> None:
    cookie = await login_with_link(conn, first, "ann", "operator")
    assert await is_signed_in(second, cookie)
    async with create_client(first, holdfast_session=cookie) as client:
        assert (await client.post("/logout", headers={"sec-fetch-site": "cross-site"})).status_code == 403
        assert (await client.post("/logout", headers=SAME_ORIGIN)).status_code == 303
    assert not await is_signed_in(first, cookie)
    await wait_until_signed_out(cookie, second)
    (entry,) = await audit.list_audit_entries(conn, limit=1)
    assert (entry.action, entry.actor) == ("dashboard.logout", "ann (operator)")


async def test_a_stolen_cookie_is_useless_after_all_other_sessions_are_ended(
    first: str, second: str, conn: Connection
) -> None:
    stolen = await login_with_link(conn, first, "ann", "admin")
    own = await login_with_link(conn, first, "ann", "admin")
    assert await is_signed_in(second, stolen)
    async with create_client(first, holdfast_session=own) as client:
        refused = await client.post("/sessions/end-others", data={"token": "x"}, headers=SAME_ORIGIN)
        assert refused.status_code == 403
        token = await find_form_token(client)
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}, {}):
            refused = await client.post("/sessions/end-others", data={"token": token}, headers=headers)
            assert refused.status_code == 403
        assert await is_signed_in(first, stolen)
        assert (await post_form(client, "/sessions/end-others")).status_code == 303
    await wait_until_signed_out(stolen, second, first)
    assert await is_signed_in(second, own)
    (entry,) = await audit.list_audit_entries(conn, limit=1)
    assert (entry.action, entry.detail) == ("session.end_others", {"count": 1})


async def test_a_cookie_that_an_attacker_chose_is_never_accepted(
    first: str, db: Database, conn: Connection
) -> None:
    """Session fixation: neither before nor after the victim signs in with it."""
    key = await create_service_key(db, "dashboard:admin")
    chosen = secrets.token_urlsafe(32)
    assert not await is_signed_in(first, chosen)
    cookie = await login_with_key(first, key, holdfast_session=chosen)
    assert cookie != chosen
    assert not await is_signed_in(first, chosen)
    stored = await conn.fetchrow("select id, hash from holdfast.dashboard_sessions")
    assert stored is not None
    for guess in (str(stored["id"]), stored["hash"].hex(), stored["id"].hex, "", "x" * 5000, "é"):
        async with httpx.AsyncClient(base_url=first) as client:
            headers = [(b"cookie", f"holdfast_session={guess}".encode())]
            assert (await client.get("/settings", headers=headers)).status_code == 303, guess
    assert hashlib.sha256(cookie.encode()).digest() == stored["hash"]


async def test_signing_in_again_ends_the_session_before(first: str, db: Database) -> None:
    key = await create_service_key(db, "dashboard:viewer")
    before = await login_with_key(first, key)
    after = await login_with_key(first, key, holdfast_session=before)
    assert not await is_signed_in(first, before)
    assert await is_signed_in(first, after)


async def test_sessions_of_the_settings_key_end_when_it_changes(
    first: str, db: Database, settings: Settings
) -> None:
    cookie = await login_with_key(first, SETTINGS_KEY)
    assert await is_signed_in(first, cookie)
    for changed in (replace(settings, service_key=Secret("another key")), settings):
        async with serve_app(create_app(changed, database=db, dashboard=create_dashboard)) as base:
            assert not await is_signed_in(f"{base}/dashboard", cookie)


async def test_an_open_page_closes_when_its_session_ends(
    first: str, second: str, db: Database, conn: Connection
) -> None:
    key = await create_service_key(db, "dashboard:viewer")
    cookies = [await login_with_key(first, key), await login_with_link(conn, first, "ann", "viewer")]
    for cookie in cookies:
        async with create_client(second, holdfast_session=cookie) as client:
            async with client.stream("GET", "/live", params={"path": "/queues"}, timeout=60) as response:
                stream = EventStreamReader(response)
                await stream.read_until("page")
                if cookie == cookies[0]:
                    await conn.execute("select holdfast.revoke_service_key($1)", key[:11])
                else:
                    await conn.execute("select holdfast.end_dashboard_sessions()")
                await stream.read_until("session_ended")
                assert await stream.read_next() is None
            await wait_until_signed_out(cookie, second)
            assert (await client.get("/live", params={"path": "/queues"})).status_code == 401


async def test_requests_do_not_write(first: str, conn: Connection, clock: Any) -> None:
    """The last use of a session is stored at most once a minute."""
    cookie = await login_with_link(conn, first, "ann", "viewer")
    version = "select xmin::text from holdfast.dashboard_sessions"
    before = await conn.fetchval(version)
    for _ in range(5):
        assert await is_signed_in(first, cookie)
    async with create_client(first, holdfast_session=cookie) as client:
        await asyncio.gather(*(client.get("/settings") for _ in range(20)))
    assert await conn.fetchval(version) == before
    await clock.advance(timedelta(minutes=2))

    async def is_use_recorded() -> bool:
        assert await is_signed_in(first, cookie)
        return bool(await conn.fetchval(version) != before)

    await wait_until(is_use_recorded, within=TIMEOUT)
    await clock.advance(timedelta(hours=12))
    await wait_until_signed_out(cookie, first)
    while json.loads(await conn.fetchval("select holdfast.tick()"))["more"]:
        pass  # the first calls only create partitions
    assert await conn.fetchval("select count(*) from holdfast.dashboard_sessions") == 0


async def test_users_see_and_end_only_sessions_of_their_own_login(
    first: str, db: Database, conn: Connection
) -> None:
    key, other_key = await create_service_key(db, "dashboard:operator"), await create_service_key(db)
    mine, also_mine = await login_with_key(first, key), await login_with_key(first, key)
    admin = await login_with_key(first, other_key)
    ids = {row.key_prefix: row.id for row in await sessions.list_sessions(conn)}
    async with create_client(first, holdfast_session=mine) as client:
        page = (await client.get("/sessions")).text
        assert page.count('data-row="') == 2
        assert page.count("this session") == 1
        assert "Firefox 128 on Linux" in page
        assert "127.0.0.1" in page
        assert other_key[:11] not in page
        for target in (ids[other_key[:11]], uuid4()):
            refused = await post_form(client, f"/sessions/{target}/end")
            assert refused.status_code == 404
            assert "does not exist or has ended already" in refused.text
        # The stream of the same page must not show what another login sees.
        async with create_client(first, holdfast_session=admin) as other:
            assert (await other.get("/sessions")).text.count('data-row="') == 3
            for each, count in ((other, 3), (client, 2)):
                async with each.stream("GET", "/live", params={"path": "/sessions"}) as response:
                    frames = await EventStreamReader(response).read_until("page")
                    assert frames[-1].data["html"].count('data-row="') == count
        assert (await post_form(client, "/sessions/end-others")).status_code == 303
    await wait_until_signed_out(also_mine, first)
    assert await is_signed_in(first, admin)
    assert await is_signed_in(first, mine)


async def test_an_admin_ends_the_session_of_somebody_else(first: str, conn: Connection) -> None:
    theirs = await login_with_link(conn, first, "bob", "viewer")
    (listed,) = await sessions.list_sessions(conn)
    own = await login_with_link(conn, first, "ann", "admin")
    async with create_client(first, holdfast_session=own) as client:
        assert (await post_form(client, f"/sessions/{listed.id}/end")).status_code == 303
        assert (await post_form(client, f"/sessions/{listed.id}/end")).status_code == 404
    await wait_until_signed_out(theirs, first)
    assert [row.name for row in await sessions.list_sessions(conn)] == ["ann"]
    (entry,) = await audit.list_audit_entries(conn, limit=1)
    assert (entry.action, entry.target, entry.actor) == ("session.end", str(listed.id), "ann (admin)")


async def test_the_user_agent_is_bounded_and_escaped(first: str, conn: Connection) -> None:
    hostile = "<script>alert(1)</script>\x7f" + "x" * 5000
    link = await create_login_link(conn, first, name="ann", role="admin")
    async with httpx.AsyncClient(headers={"user-agent": hostile}, timeout=30) as client:
        client.cookies.set("holdfast_session", (await client.get(link)).cookies["holdfast_session"])
        (listed,) = await sessions.list_sessions(conn)
        page = (await client.get(f"{first}/sessions")).text
    assert listed.user_agent is not None
    assert len(listed.user_agent) == 300
    assert "\x7f" not in listed.user_agent
    assert "<script>alert" not in page
    assert html.escape("<script>alert(1)</script>") in page


async def test_services_list_and_end_sessions_of_roles_that_they_have(
    first: str, db: Database, conn: Connection
) -> None:
    viewer = await login_with_link(conn, first, "bob", "viewer")
    admin = await login_with_link(conn, first, "ann", "admin")
    ids = {row.name: row.id for row in await sessions.list_sessions(conn)}
    keys = await create_service_key(db, "keys", "dashboard:viewer")
    api = first.removesuffix("/dashboard")
    async with httpx.AsyncClient(base_url=api, headers={"authorization": f"Bearer {keys}"}) as client:
        listed = (await client.get("/api/sessions")).json()
        assert {row["name"] for row in listed} == {"ann", "bob"}
        assert "hash" not in listed[0]
        assert (await client.delete(f"/api/sessions/{ids['ann']}")).status_code == 403
        assert (await client.delete(f"/api/sessions/{UUID(int=1)}")).status_code == 404
        assert (await client.delete("/api/sessions")).json() == {"ended": 1}
        assert (await client.delete(f"/api/sessions/{ids['bob']}")).status_code == 404
    await wait_until_signed_out(viewer, first)
    assert await is_signed_in(first, admin)
    everything = await create_service_key(db)
    async with httpx.AsyncClient(base_url=api, headers={"authorization": f"Bearer {everything}"}) as client:
        assert (await client.delete(f"/api/sessions/{ids['ann']}")).status_code == 204
    await wait_until_signed_out(admin, first)
    actions = [entry.action for entry in await audit.list_audit_entries(conn, limit=2)]
    assert actions == ["session.end", "session.end_all"]


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (FIREFOX, "Firefox 128 on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
            "Chrome/126.0.0.0 Safari/537.36 Edg/126.0.0.0",
            "Edge 126 on Windows",
        ),
        (
            "Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 "
            "Mobile Safari/537.36",
            "Chrome 126 on Android",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
            "Version/17.5 Mobile/15E148 Safari/604.1",
            "Safari 17 on iPhone",
        ),
        ("curl/8.5.0", "curl 8"),
        ("some robot", "some robot"),
        (None, "unknown"),
    ],
)
def test_browser_names(user_agent: str | None, name: str) -> None:
    assert describe_browser(user_agent) == name


def test_without_the_database_a_session_sees_only_what_was_shown_before(dashboard: DashboardServer) -> None:
    """Nobody can say whether a session has ended. So it changes nothing, and downloads nothing."""
    with dashboard.sign_in("admin") as client, dashboard.sign_in("admin") as unknown:
        assert client.get("/queues").status_code == 200
        dashboard.allow_connections(False)
        try:
            shown = client.get("/queues")
            assert shown.status_code == 200
            assert "does not respond" in shown.text
            assert client.get("/workers").status_code == 503  # this page was not shown before
            assert client.get("/jobs/export?format=csv").status_code == 503
            assert dashboard.post_form(client, "/queue/pause", name="q", span="1h").status_code == 503
            assert client.post("/logout", headers=SAME_ORIGIN).status_code == 503
            assert unknown.get("/queues").status_code == 503  # this process has never seen the session
        finally:
            dashboard.allow_connections(True)
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while client.get("/workers").status_code != 200:
            assert time.monotonic() < deadline
