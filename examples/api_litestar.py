"""The API inside a Litestar application, under /tasks."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, asgi, get

from api_reports import app as work


@asgi("/tasks", is_mount=True, copy_scope=True)
async def mounted(scope: Any, receive: Any, send: Any) -> None:
    # Litestar hands over the rest of the path; the prefix is what our own links begin with.
    path = "/tasks/" + scope["path"].strip("/")
    await work({**scope, "path": path, "root_path": "/tasks"}, receive, send)


@get("/")
async def home() -> str:
    return "home"


async def close() -> None:
    await work.state.holdfast.close()
    await work.state.holdfast.database.close()


app = Litestar([home, mounted], on_shutdown=[close])
