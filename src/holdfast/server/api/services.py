"""Objects that all endpoints of an application share, such as the database, settings and object store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import HTTPConnection

from holdfast.client import Client
from holdfast.definitions.job_types import JobType
from holdfast.definitions.tasks import Task
from holdfast.engine import access
from holdfast.engine.connection import Database
from holdfast.engine.rpc import SqlFunctionCache
from holdfast.server.api.access_monitor import AccessMonitor
from holdfast.server.api.event_hub import EventHub
from holdfast.server.api.key_verification import ServiceKeyVerifier
from holdfast.server.api.metric_sources import MetricSource
from holdfast.server.api.rate_limit import RateLimiter
from holdfast.server.api.token_verification import TokenVerifier
from holdfast.settings import Settings
from holdfast.storage import ObjectStore, open_store
from holdfast.worker.metrics import ProcessMetrics

SERVICES_ASGI_SCOPE_KEY = "holdfast"


@dataclass
class AppServices:
    """Objects that all requests of one application share. `create_app` stores them in `app.state.holdfast`.

    Pass the services to `create_dashboard` to mount the dashboard yourself:

    >>> from holdfast.server import AppServices, create_app, create_dashboard
    >>> app = create_app()
    >>> services: AppServices = app.state.holdfast
    >>> dashboard = create_dashboard(services)
    """

    database: Database
    settings: Settings
    store: ObjectStore | None
    job_types: Mapping[str, JobType[Any]]
    tasks: Mapping[str, Task[..., Any]]
    event_hub: EventHub
    token_verifier: TokenVerifier
    key_verifier: ServiceKeyVerifier
    rate_limiter: RateLimiter
    access_monitor: AccessMonitor
    rpc_functions: SqlFunctionCache = field(default_factory=SqlFunctionCache, repr=False)
    metrics: ProcessMetrics = field(default_factory=ProcessMetrics, repr=False)
    metric_sources: tuple[MetricSource, ...] = ()
    _client: Client | None = field(default=None, repr=False)
    _roles: frozenset[str] | None = field(default=None, repr=False)

    @classmethod
    def create(
        cls,
        database: Database,
        settings: Settings,
        *,
        store: ObjectStore | None = None,
        job_types: Mapping[str, JobType[Any]] | None = None,
        tasks: Mapping[str, Task[..., Any]] | None = None,
    ) -> AppServices:
        """Create the services of an application without opening a connection."""
        return cls(
            database,
            settings,
            store,
            job_types or {},
            tasks or {},
            EventHub(database, settings),
            TokenVerifier(settings),
            ServiceKeyVerifier(database, settings),
            RateLimiter(settings.api_rate, settings.api_burst),
            AccessMonitor(database),
        )

    async def fetch_allowed_roles(self) -> frozenset[str]:
        """Return the database roles that requests may act as. Only the first call queries the database."""
        if self._roles is None:
            async with self.database.connection() as connection:
                self._roles = await access.list_usable_roles(connection)
        return self._roles

    def get_store(self) -> ObjectStore:
        """Return the object store. The first call opens the store that is configured in the settings."""
        if self.store is None:
            self.store = open_store(self.settings)
        return self.store

    def get_client(self) -> Client:
        """Return the client of the application, which uses its database, settings and object store."""
        if self._client is None:
            self._client = Client(self.database.url.reveal(), settings=self.settings)
            if self.store is not None:
                self._client.files.store = self.store
        return self._client

    async def close(self) -> None:
        """Stop the background work of the application and close its client."""
        self.metrics.stop()
        await self.event_hub.stop_delivery()
        await self.access_monitor.stop()
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def get_services(request: HTTPConnection) -> AppServices:
    """Return the services of the application that received the request."""
    return cast("AppServices", request.scope[SERVICES_ASGI_SCOPE_KEY])


def get_settings(request: HTTPConnection) -> Settings:
    """Return the settings of the application that received the request.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import get_settings, json_response
    >>> async def show_limits(request: Request) -> Response:
    ...     return json_response({"jobs": get_settings(request).user_jobs})
    """
    return get_services(request).settings


def get_client(request: HTTPConnection) -> Client:
    """Return the client of the application that received the request.

    The application has one client, which uses the application's database, settings and object store. The
    application closes it on shutdown.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import get_client, json_response, parse_path_uuid
    >>> async def show_job(request: Request) -> Response:
    ...     job = await get_client(request).get(parse_path_uuid(request, "id"))
    ...     return json_response({"status": job.status})
    """
    return get_services(request).get_client()


def get_store(request: HTTPConnection) -> ObjectStore:
    """Return the object store of the application that received the request.

    >>> from starlette.requests import Request
    >>> from starlette.responses import StreamingResponse
    >>> from holdfast.server import get_store
    >>> async def download(request: Request) -> StreamingResponse:
    ...     async def read_chunks():
    ...         async with get_store(request).open("logos/logo.png") as chunks:
    ...             async for chunk in chunks:
    ...                 yield chunk
    ...
    ...     return StreamingResponse(read_chunks(), media_type="image/png")
    """
    return get_services(request).get_store()
