"""The HTTP API: one ASGI application, alone (`holdfast api`) or mounted in another one.

    app = create_app(settings, types=[report])          # uvicorn module:app
    fastapi_app.mount("/tasks", create_app(settings))    # or inside your own

The parts: `protection` is around every request, `operations` guards every endpoint, `identity` says who
asks and opens the one transaction in which the database decides, and every noun has a file of routes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from holdfast import settings as settings_module
from holdfast.definitions.job_types import JobType, by_name
from holdfast.definitions.tasks import Task
from holdfast.engine import embedded
from holdfast.engine.connection import Database
from holdfast.errors import HoldfastError
from holdfast.server.api import (
    batches,
    browser,
    figures,
    files,
    finding,
    health,
    jobs,
    keys,
    messages,
    openapi,
    problems,
    queues,
    rpc,
    schedules,
    tasks,
    uploads,
    webhooks,
)
from holdfast.server.api.events import stream
from holdfast.server.api.identity import Caller, acting, identify, require_service, require_user
from holdfast.server.api.operations import operation
from holdfast.server.api.protection import Protected
from holdfast.server.api.services import Services, services_of
from holdfast.settings import Settings

Tasks = Iterable[Task[..., Any]] | Mapping[str, Task[..., Any]]

__all__ = [
    "Caller",
    "RouteAhead",
    "Services",
    "acting",
    "create_app",
    "document",
    "identify",
    "operation",
    "require_service",
    "require_user",
    "services_of",
    "stream",
]


def create_app(
    settings: Settings | None = None,
    *,
    database: Database | None = None,
    store: Any = None,
    types: Iterable[JobType[Any]] = (),
    tasks: Tasks = (),
    routes: Iterable[BaseRoute] = (),
    dashboard: ASGIApp | Callable[[Services], ASGIApp] | None = None,
) -> Starlette:
    """The application. With a DATABASE_URL it opens nothing before the first request, so that it can be made
    at import time; without one the embedded PostgreSQL is started here. `routes` come after our own, unless
    they are `RouteAhead`.
    """
    settings = settings or settings_module.load()
    services = Services.of(
        database or Database(embedded.locate(settings)[0], settings),
        settings,
        store=store,
        types=by_name(types),
        tasks=_by_name(tasks),
    )
    app = Starlette(
        routes=[*_ordered([*_routes(), *routes]), *_mounted(dashboard, services)],
        middleware=[*_cors(settings), Middleware(Protected, services=services)],
        exception_handlers={
            HoldfastError: problems.on_holdfast_error,
            HTTPException: problems.on_http_error,
        },
        lifespan=_lifespan(services, owns=database is None),
    )
    app.state.holdfast = services
    return app


class RouteAhead(Route):
    """Takes the path of a route of ours over, and hands on what is not for it."""


def _ordered(routes: list[BaseRoute]) -> list[BaseRoute]:
    return sorted(routes, key=lambda route: not isinstance(route, RouteAhead))


def _by_name(tasks: Tasks) -> Mapping[str, Task[..., Any]]:
    if isinstance(tasks, Mapping):
        return cast("Mapping[str, Task[..., Any]]", tasks)
    return {task.name: task for task in tasks}


def _routes() -> list[BaseRoute]:
    nouns = (
        health, figures, jobs, finding, tasks, uploads, batches, files, schedules, queues, messages, keys,
        webhooks, rpc, browser, openapi,
    )  # fmt: skip
    return [route for noun in nouns for route in noun.routes()]


def document() -> dict[str, Any]:
    """The OpenAPI description of the routes that every application has."""
    return openapi.describe(_routes())


def _mounted(dashboard: Any, services: Services) -> list[BaseRoute]:
    if dashboard is None:
        return []
    # Whoever takes one thing is a maker that wants the services; an application takes three.
    needed = [p for p in inspect.signature(dashboard).parameters.values() if p.default is p.empty]
    return [Mount("/dashboard", dashboard(services) if len(needed) == 1 else dashboard)]


def _cors(settings: Settings) -> list[Middleware]:
    origins = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["authorization", "apikey", "content-type", "idempotency-key", "last-event-id",
                           "content-profile", "accept-profile", "prefer", "x-client-info"],
            expose_headers=["location", "etag", "retry-after"],
            max_age=600,
        )
    ]  # fmt: skip


def _lifespan(services: Services, *, owns: bool) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        services.metrics.start()
        try:
            yield
        finally:
            await services.close()
            if owns:
                await services.database.close()

    return lifespan
