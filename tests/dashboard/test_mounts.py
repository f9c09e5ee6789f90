"""The dashboard under any path: in other applications, behind proxies, with the host's own users."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.engine import jobs, operate
from holdfast.engine.connection import Connection, Database
from holdfast.server.api.services import Services
from holdfast.server.dashboard import Visitor, create_dashboard, login_link
from holdfast.server.dashboard.live import Live
from holdfast.server.dashboard.site import Page, Site, View
from holdfast.settings import Secret, Settings


@pytest.fixture
def services(db: Database, settings: Settings) -> Services:
    return Services.of(db, replace(settings, service_key=Secret("hf_mounted")))


def browser(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://ops.example", follow_redirects=True
    )


def in_django(inner: ASGIApp) -> ASGIApp:
    """Django's ASGI handler knows no mounts: projects pass a path on before it, as with Channels."""
    import django  # noqa: PLC0415
    from django.conf import settings as conf  # noqa: PLC0415

    if not conf.configured:
        conf.configure(SECRET_KEY="x", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DEBUG=False)
        django.setup()
    from django.core.asgi import get_asgi_application  # noqa: PLC0415

    handler: Any = get_asgi_application()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/a/b"):
            await inner({**scope, "root_path": "/a/b"}, receive, send)
        else:
            await handler(scope, receive, send)

    return app


urlpatterns: list[Any] = []


def mounted(kind: str, dashboard: ASGIApp) -> ASGIApp:
    if kind == "fastapi":
        app = FastAPI()
        app.mount("/a/b", dashboard)
        return app
    if kind == "django":
        return in_django(dashboard)
    return Starlette(routes=[Mount("/a/b", dashboard)])


@pytest.mark.parametrize("kind", ["starlette", "fastapi", "django"])
async def test_every_link_stays_under_the_prefix(kind: str, services: Services, conn: Connection) -> None:
    app = mounted(kind, create_dashboard(services))
    async with browser(app) as client:
        closed = await client.get("/a/b/jobs?q=state:failed")
        assert str(closed.url).startswith("http://ops.example/a/b/login?next=")
        link = await login_link(conn, "http://ops.example/a/b")
        assert (await client.get(link)).status_code == 200
        for path in ("/", "/jobs", "/queues", "/settings"):
            page = await client.get(f"/a/b{path}")
            assert page.status_code == 200, (kind, path)
            for address in re.findall(r'(?:href|src|action)="([^"#]+)"', page.text):
                assert address.startswith(("/a/b", "http")), (path, address)
            style = re.search(r'href="([^"]+style\.css)"', page.text)
            assert style is not None
            assert (await client.get(style[1])).status_code == 200


async def test_behind_a_proxy_that_takes_the_prefix_away(services: Services, conn: Connection) -> None:
    app = Starlette(routes=[Mount("/", create_dashboard(services))])
    async with browser(app) as client:
        await client.get(await login_link(conn, "http://ops.example"))
        page = await client.get("/jobs", headers={"x-forwarded-prefix": "/tools/holdfast"})
        assert 'href="/tools/holdfast/queues"' in page.text
        assert 'data-base="/tools/holdfast"' in page.text
        for bad in ("//evil.example", '/a"onload=', "javascript:x", "/a b"):
            page = await client.get("/jobs", headers={"x-forwarded-prefix": bad})
            assert "evil" not in page.text
            assert 'href="/queues"' in page.text


async def test_the_host_says_who_it_is(services: Services) -> None:
    people = {"ann": Visitor("ann", "operator"), "sue": Visitor("sue", "support", tenant="acme")}

    async def who(request: HTTPConnection) -> Visitor | None:
        return people.get(request.headers.get("x-user", ""))

    app = Starlette(routes=[Mount("/ops", create_dashboard(services, roles=who, environment="prod"))])
    same = {"sec-fetch-site": "same-origin"}
    async with browser(app) as client:
        assert (await client.get("/ops/")).status_code == 403
        page = await client.get("/ops/queues", headers={"x-user": "ann"})
        assert "prod" in page.text
        assert (await client.get("/ops/queues", headers={"x-user": "sue"})).status_code == 403
        settings = (await client.get("/ops/settings", headers={"x-user": "ann"})).text
        token = re.search(r'name="token" value="([^"]+)"', settings)
        assert token is not None
        form = {"token": token[1], "name": "q", "span": "1h", "why": "x"}
        done = await client.post("/ops/queue/pause", data=form, headers={"x-user": "ann", **same})
        assert done.status_code in {200, 404}  # the page after it: the queue is known now
        refused = await client.post("/ops/queue/pause", data=form, headers={"x-user": "sue", **same})
        assert refused.status_code == 403


async def test_streams_tell_proxies_not_to_wait(services: Services) -> None:
    dashboard = create_dashboard(services, roles=lambda _: Visitor("ann", "viewer"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and b"event: page" in message.get("body", b""):
            raise ConnectionError  # it has what it came for

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/live",
        "root_path": "",
        "query_string": b"path=/queues",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("x", 80),
        "scheme": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }
    with pytest.raises(BaseException):  # noqa: B017, PT011  (ours, or the group around it)
        await dashboard(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert headers["x-accel-buffering"] == "no"
    assert "no-transform" in headers["cache-control"]
    assert headers["content-type"].startswith("text/event-stream")


async def test_two_hundred_viewers_cost_one(services: Services, conn: Connection) -> None:
    """A page is made once for all who see the same, and the database is asked once for all of them."""
    site = Site(services)
    live = Live(site)
    made = 0

    async def make(view: View) -> Page:
        nonlocal made
        made += 1
        count = sum(queue["ready"] for queue in await operate.task_queues(view.connection))
        return Page("problem.html", "x", {"text": f"there are {count} tasks", "code": 1})

    async def watch(n: int) -> tuple[int, str]:
        session = site.signer.session(site.signer.start(Visitor(f"viewer {n}", "viewer")))
        assert session is not None
        view = View(site, session, "", "/queues", QueryParams(""), {}, {})
        seen = ""
        async for frame in live.stream(view, make, ""):
            if b"event: page" in frame:
                seen = frame.decode()
                started.release()
            if "there are 1 tasks" in seen:
                return n, seen
        raise AssertionError("the stream ended")

    started = asyncio.Semaphore(0)
    watching = [asyncio.create_task(watch(n)) for n in range(200)]
    for _ in range(200):
        await asyncio.wait_for(started.acquire(), 60)
    assert live.viewers == 200
    before = made
    await jobs.submit(conn, {"type": "t", "queue": "q"})
    answers = await asyncio.wait_for(asyncio.gather(*watching), 60)
    assert len(answers) == 200
    assert made - before <= 3
    assert live.viewers == 0
