"""The dashboard inside other applications, behind proxies, and with the host's own users."""

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

from holdfast.engine import jobs, queues
from holdfast.engine.connection import Connection, Database
from holdfast.server.api.services import AppServices
from holdfast.server.dashboard import DashboardUser, create_dashboard, create_login_link
from holdfast.server.dashboard.live import LiveUpdates
from holdfast.server.dashboard.site import DashboardPage, DashboardSite, PageRequest
from holdfast.settings import Secret, Settings


@pytest.fixture
def services(db: Database, settings: Settings) -> AppServices:
    return AppServices.create(db, replace(settings, service_key=Secret("hf_mounted")))


def create_client(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://ops.example", follow_redirects=True
    )


def mount_in_django(inner: ASGIApp) -> ASGIApp:
    """Dispatch by path before Django's ASGI handler, which has no mounts, as projects with Channels do."""
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


def mount_dashboard(framework: str, dashboard: ASGIApp) -> ASGIApp:
    if framework == "fastapi":
        app = FastAPI()
        app.mount("/a/b", dashboard)
        return app
    if framework == "django":
        return mount_in_django(dashboard)
    return Starlette(routes=[Mount("/a/b", dashboard)])


@pytest.mark.parametrize("framework", ["starlette", "fastapi", "django"])
async def test_every_link_stays_under_the_prefix(
    framework: str, services: AppServices, conn: Connection
) -> None:
    app = mount_dashboard(framework, create_dashboard(services))
    async with create_client(app) as client:
        redirected = await client.get("/a/b/jobs?q=state:failed")
        assert str(redirected.url).startswith("http://ops.example/a/b/login?next=")
        link = await create_login_link(conn, "http://ops.example/a/b")
        assert (await client.get(link)).status_code == 200
        for path in ("/", "/jobs", "/queues", "/settings"):
            page = await client.get(f"/a/b{path}")
            assert page.status_code == 200, (framework, path)
            for url in re.findall(r'(?:href|src|action)="([^"#]+)"', page.text):
                assert url.startswith(("/a/b", "http")), (path, url)
            style = re.search(r'href="([^"]+style\.css)"', page.text)
            assert style is not None
            assert (await client.get(style[1])).status_code == 200


async def test_proxy_that_removes_the_prefix(services: AppServices, conn: Connection) -> None:
    app = Starlette(routes=[Mount("/", create_dashboard(services))])
    async with create_client(app) as client:
        await client.get(await create_login_link(conn, "http://ops.example"))
        page = await client.get("/jobs", headers={"x-forwarded-prefix": "/tools/holdfast"})
        assert 'href="/tools/holdfast/queues"' in page.text
        assert 'data-base="/tools/holdfast"' in page.text
        for invalid in ("//evil.example", '/a"onload=', "javascript:x", "/a b"):
            page = await client.get("/jobs", headers={"x-forwarded-prefix": invalid})
            assert "evil" not in page.text
            assert 'href="/queues"' in page.text


async def test_host_application_identifies_users(services: AppServices) -> None:
    users = {"ann": DashboardUser("ann", "operator"), "sue": DashboardUser("sue", "support", tenant="acme")}

    async def identify_user(request: HTTPConnection) -> DashboardUser | None:
        return users.get(request.headers.get("x-user", ""))

    app = Starlette(
        routes=[Mount("/ops", create_dashboard(services, identify_user=identify_user, environment="prod"))]
    )
    same_origin = {"sec-fetch-site": "same-origin"}
    async with create_client(app) as client:
        assert (await client.get("/ops/")).status_code == 403
        page = await client.get("/ops/queues", headers={"x-user": "ann"})
        assert "prod" in page.text
        assert (await client.get("/ops/queues", headers={"x-user": "sue"})).status_code == 403
        settings = (await client.get("/ops/settings", headers={"x-user": "ann"})).text
        token = re.search(r'name="token" value="([^"]+)"', settings)
        assert token is not None
        form = {"token": token[1], "name": "q", "span": "1h", "reason": "x"}
        response = await client.post("/ops/queue/pause", data=form, headers={"x-user": "ann", **same_origin})
        assert response.status_code in {200, 404}  # of the page after the redirect
        refused = await client.post("/ops/queue/pause", data=form, headers={"x-user": "sue", **same_origin})
        assert refused.status_code == 403


async def test_streams_disable_proxy_buffering(services: AppServices) -> None:
    dashboard = create_dashboard(services, identify_user=lambda _: DashboardUser("ann", "viewer"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and b"event: page" in message.get("body", b""):
            raise ConnectionError  # the client disconnects

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
    with pytest.raises(BaseException):  # noqa: B017, PT011  (the error, or the group around it)
        await dashboard(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert headers["x-accel-buffering"] == "no"
    assert "no-transform" in headers["cache-control"]
    assert headers["content-type"].startswith("text/event-stream")


async def test_200_viewers_share_one_rendering(services: AppServices, conn: Connection) -> None:
    """A page is rendered once for all viewers who see the same."""
    site = DashboardSite(services)
    live = LiveUpdates(site)
    renderings = 0

    async def load_page(request: PageRequest) -> DashboardPage:
        nonlocal renderings
        renderings += 1
        count = sum(queue["ready"] for queue in await queues.list_task_queues(request.connection))
        return DashboardPage("error_page.html", "x", {"text": f"there are {count} tasks", "code": 1})

    async def watch(n: int) -> tuple[int, str]:
        session = site.signer.create_host_session(DashboardUser(f"viewer {n}", "viewer"))
        request = PageRequest(site, session, "", "/queues", QueryParams(""), {}, {})
        last_page = ""
        async for event in live.stream_page(request, load_page, ""):
            if b"event: page" in event:
                last_page = event.decode()
                started.release()
            if "there are 1 tasks" in last_page:
                return n, last_page
        raise AssertionError("the stream ended")

    started = asyncio.Semaphore(0)
    viewers = [asyncio.create_task(watch(n)) for n in range(200)]
    for _ in range(200):
        await asyncio.wait_for(started.acquire(), 60)
    assert live.stream_count == 200
    before = renderings
    await jobs.submit(conn, {"type": "t", "queue": "q"})
    results = await asyncio.wait_for(asyncio.gather(*viewers), 60)
    assert len(results) == 200
    assert renderings - before <= 3
    assert live.stream_count == 0
