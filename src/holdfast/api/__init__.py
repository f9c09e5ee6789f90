"""The HTTP API: one ASGI application, alone (`holdfast api`) or mounted in another one."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import telemetry
from holdfast.api import problems
from holdfast.api.auth import require_service
from holdfast.engine import install, jobs
from holdfast.engine.connection import Database
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.settings import Settings

__all__ = ["create_app"]


def create_app(database: Database, settings: Settings) -> ASGIApp:
    routes = Routes(database, settings)
    return Starlette(
        routes=[
            Route("/healthz", routes.health),
            Route("/readyz", routes.ready),
            Route("/api/jobs/{id}", routes.job),
        ],
        middleware=[Middleware(Watched)],
        exception_handlers={
            HoldfastError: problems.on_holdfast_error,
            HTTPException: problems.on_http_error,
            Exception: problems.on_surprise,
        },
    )


class Routes:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def health(self, _: Request) -> Response:
        """The process answers."""
        return answer({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """The database answers too, and its schema fits this code."""
        async with self._database.connection() as connection:
            await install.verify(connection)
        return answer({"status": "ready"})

    async def job(self, request: Request) -> Response:
        require_service(request, self._settings.service_key)
        async with self._database.connection() as connection:
            found = await jobs.get_job(connection, _uuid(request.path_params["id"]))
        if found is None:
            raise NotFoundError("There is no such job.")
        return answer(found)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidError("id is not a UUID.", field="id") from None


def answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class Watched:
    """Safe headers on every answer, and an event for every request."""

    HEADERS = (
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"cache-control", b"no-store"),
    )

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *self.HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            telemetry.emit(
                "api.request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=time.monotonic() - began,
            )
