"""Mount the HTTP API in a Litestar application, under /tasks."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar, asgi, get

from api_reports import app as jobs_api


@asgi("/tasks", is_mount=True, copy_scope=True)
async def mount_jobs_api(scope: Any, receive: Any, send: Any) -> None:
    # Litestar passes the path without the prefix. The API needs the prefix for its own links.
    path = "/tasks/" + scope["path"].strip("/")
    await jobs_api({**scope, "path": path, "root_path": "/tasks"}, receive, send)


@get("/")
async def home() -> str:
    return "home"


def lifespan(_: Litestar) -> AbstractAsyncContextManager[Any]:
    return jobs_api.router.lifespan_context(jobs_api)  # closes streams and connections


app = Litestar([home, mount_jobs_api], lifespan=[lifespan])
