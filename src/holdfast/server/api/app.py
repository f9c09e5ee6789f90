"""Create the application of the HTTP API."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from holdfast import settings as settings_module
from holdfast.client.redirection import redirectable_objects
from holdfast.definitions.job_types import JobType, index_job_types
from holdfast.definitions.single_database import refuse_systems_on_shards
from holdfast.definitions.tasks import Task
from holdfast.engine import embedded
from holdfast.engine.connection import Database
from holdfast.errors import HoldfastError
from holdfast.server.api import (
    alerts,
    audit_log,
    batches,
    browser_client,
    bulk_actions,
    docs_page,
    erasures,
    external_workers,
    file_links,
    files,
    health,
    inbound_webhooks,
    jobs,
    keys,
    limits,
    messages,
    metrics,
    openapi,
    queues,
    rpc,
    schedules,
    search,
    sessions,
    uploads,
    user_session,
    webhooks,
    workers,
)
from holdfast.server.api.metric_sources import MetricSource
from holdfast.server.api.middleware import (
    AppServicesMiddleware,
    RequestTelemetryMiddleware,
    RequestTimeoutMiddleware,
    SecurityHeadersMiddleware,
)
from holdfast.server.api.priority_routes import PriorityRoute
from holdfast.server.api.problem_responses import handle_holdfast_error, handle_http_exception
from holdfast.server.api.services import AppServices, ShardServices
from holdfast.server.api.shard_requests import ShardRequestMiddleware
from holdfast.settings import Settings
from holdfast.storage import ObjectStore
from holdfast.tracing import get_tracing

TaskCollection: TypeAlias = Iterable[Task[..., Any]] | Mapping[str, Task[..., Any]]
CORS_MAX_AGE_S = 600


def create_app(  # noqa: PLR0913  (the parts of an application, by name)
    settings: Settings | None = None,
    *,
    database: Database | None = None,
    store: ObjectStore | None = None,
    job_types: Iterable[JobType[Any]] = (),
    tasks: TaskCollection = (),
    routes: Iterable[BaseRoute] = (),
    dashboard: ASGIApp | Callable[[AppServices], ASGIApp] | None = None,
    metric_sources: Iterable[MetricSource] = (),
) -> Starlette:
    """Create the HTTP API as a Starlette application, to run with an ASGI server or to mount in your own.

    - `settings`: defaults to the settings in the environment. If they name shards, the application serves
      all of them. If they name no database, the embedded PostgreSQL starts here. Otherwise nothing is opened
      before the first request, so you can create the application at import time.
    - `database`, `store`: a connection pool and an object store that you opened. The application does not
      close them. Without `database`, tests with the fixture `hf` give it the database of the test.
    - `job_types`: the job types that clients may start.
    - `tasks`: tasks whose queue is used when a client starts them by their type.
    - `routes`: your own routes. They come after the built-in ones, except for `PriorityRoute`.
    - `dashboard`: `create_dashboard`, or an ASGI application. It is mounted at `/dashboard`.
    - `metric_sources`: functions that return `MetricSample` values for `/metrics`.

    The shared objects of the application are in `app.state.holdfast`.

    >>> from holdfast import Graph, job, task
    >>> from holdfast.server import create_app, create_dashboard
    >>> @task
    ... async def render(page: str) -> str:
    ...     return f"<p>{page}</p>"
    >>> @job("report", params=dict, public=True)
    ... def report(params: dict) -> Graph:
    ...     graph = Graph("report")
    ...     graph.add(render(params["page"]))
    ...     return graph
    >>> app = create_app(job_types=[report], dashboard=create_dashboard)  # uvicorn module:app
    """
    settings = settings or settings_module.load_settings()
    redirection = redirectable_objects.current
    if database is None and redirection is not None:
        settings = redirection.adapt_settings(settings)
    services = _create_services(
        settings,
        database,
        tuple(metric_sources),
        store=store,
        job_types=index_job_types(job_types),
        tasks=_index_tasks_by_type(tasks),
    )
    routes = list(routes)
    if services.shards is not None:
        refuse_systems_on_shards(getattr(route, "endpoint", None) for route in routes)
    app = Starlette(
        routes=[
            *_order_routes_by_priority([*_list_built_in_routes(), *routes]),
            *_build_dashboard_routes(dashboard, services),
        ],
        middleware=_build_middleware(settings, services),
        exception_handlers={HoldfastError: handle_holdfast_error, HTTPException: handle_http_exception},
        lifespan=_create_lifespan(services, owns_database=database is None),
    )
    app.state.holdfast = services
    if database is None and services.shards is None:
        redirectable_objects.register(services)
    return app


def _create_services(
    settings: Settings, database: Database | None, metric_sources: tuple[MetricSource, ...], **parts: Any
) -> AppServices:
    """Create the services of the application: those of its database, or of its first shard."""
    if database is None and settings.shards is not None:
        shards = ShardServices.create(settings, **parts)
        for services in shards.by_number.values():
            services.metric_sources = metric_sources
        return shards.first
    database = database or Database(embedded.locate_database(settings)[0], settings)
    services = AppServices.create(database, settings, **parts)
    services.metric_sources = metric_sources
    return services


def build_openapi_document() -> dict[str, Any]:
    """Build the OpenAPI document of the built-in routes of the HTTP API."""
    return openapi.build_openapi_from_routes(_list_built_in_routes())


def _list_built_in_routes() -> list[BaseRoute]:
    groups: list[Sequence[BaseRoute]] = [
        health.build_health_routes(),
        metrics.build_metrics_routes(),
        jobs.build_job_routes(),
        search.build_search_routes(),
        bulk_actions.build_bulk_action_routes(),
        external_workers.build_external_worker_routes(),
        uploads.build_upload_routes(),
        batches.build_batch_routes(),
        files.build_file_routes(),
        file_links.build_signed_file_routes(),
        schedules.build_schedule_routes(),
        queues.build_queue_routes(),
        limits.build_limit_routes(),
        alerts.build_alert_routes(),
        erasures.build_erasure_routes(),
        workers.build_worker_routes(),
        messages.build_message_routes(),
        keys.build_service_key_routes(),
        sessions.build_session_routes(),
        user_session.build_user_session_routes(),
        audit_log.build_audit_log_routes(),
        webhooks.build_webhook_routes(),
        inbound_webhooks.build_inbound_webhook_routes(),
        rpc.build_rpc_routes(),
        browser_client.build_browser_client_routes(),
        openapi.build_openapi_routes(),
        docs_page.build_docs_page_routes(),
    ]
    return [route for group in groups for route in group]


def _order_routes_by_priority(routes: list[BaseRoute]) -> list[BaseRoute]:
    return sorted(routes, key=lambda route: not isinstance(route, PriorityRoute))


def _index_tasks_by_type(tasks: TaskCollection) -> Mapping[str, Task[..., Any]]:
    if isinstance(tasks, Mapping):
        return cast("Mapping[str, Task[..., Any]]", tasks)
    return {task.name: task for task in tasks}


def _build_dashboard_routes(dashboard: Any, services: AppServices) -> list[BaseRoute]:
    if dashboard is None:
        return []
    # A factory has one required parameter, the services. An ASGI application has three.
    parameters = inspect.signature(dashboard).parameters.values()
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    return [Mount("/dashboard", dashboard(services) if len(required) == 1 else dashboard)]


def _build_middleware(settings: Settings, services: AppServices) -> list[Middleware]:
    return [
        *_build_cors_middleware(settings),
        Middleware(RequestTelemetryMiddleware, tracing=get_tracing(settings.tracing)),
        Middleware(SecurityHeadersMiddleware),
        Middleware(RequestTimeoutMiddleware, timeout_s=settings.api_timeout.total_seconds()),
        Middleware(AppServicesMiddleware, services=services)
        if services.shards is None
        else Middleware(ShardRequestMiddleware, shards=services.shards),
    ]


def _build_cors_middleware(settings: Settings) -> list[Middleware]:
    origins = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["authorization", "apikey", "content-type", "idempotency-key", "last-event-id",
                           "content-profile", "accept-profile", "prefer", "x-client-info"],
            expose_headers=["location", "etag", "retry-after"],
            max_age=CORS_MAX_AGE_S,
        )
    ]  # fmt: skip


def _create_lifespan(
    services: AppServices, *, owns_database: bool
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        services.metrics.start()
        all_services = [services] if services.shards is None else services.shards.by_number.values()
        for each in all_services:
            each.alerts.start()
        try:
            yield
        finally:
            if services.shards is not None:
                await services.shards.close()
            else:
                await services.close()
            if services.shards is None and owns_database:
                await services.database.close()

    return lifespan
