"""Objects that all endpoints of an application share, such as the database, settings and object store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from starlette.requests import HTTPConnection

from holdfast.client import Client
from holdfast.client.redirection import Redirection
from holdfast.client.shard_router import ShardRouter
from holdfast.definitions.job_types import JobType
from holdfast.definitions.tasks import Task
from holdfast.engine import access
from holdfast.engine.connection import Database
from holdfast.engine.rpc import SqlFunctionCache
from holdfast.server.api.access_monitor import AccessMonitor
from holdfast.server.api.alert_service import AlertService
from holdfast.server.api.event_hub import EventHub
from holdfast.server.api.key_verification import ServiceKeyVerifier
from holdfast.server.api.metric_sources import MetricSource
from holdfast.server.api.rate_limit import RateLimiter
from holdfast.server.api.replica_reads import ReplicaReads
from holdfast.server.api.submit_batches import SubmitBatcher
from holdfast.server.api.token_verification import TokenVerifier
from holdfast.server.api.user_session_store import UserSessionStore
from holdfast.setting_values import parse_shards
from holdfast.settings import Secret, Settings
from holdfast.storage import ObjectStore, open_store
from holdfast.worker.metrics import ProcessMetrics

SERVICES_ASGI_SCOPE_KEY = "holdfast"
TEST_DATABASE_CLOSE_TIMEOUT_S = 2.0


@dataclass(eq=False)
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
    alerts: AlertService
    user_sessions: UserSessionStore
    submit_batcher: SubmitBatcher
    rpc_functions: SqlFunctionCache = field(default_factory=SqlFunctionCache, repr=False)
    metrics: ProcessMetrics = field(default_factory=ProcessMetrics, repr=False)
    metric_sources: tuple[MetricSource, ...] = ()
    shards: ShardServices | None = field(default=None, repr=False)
    _client: Client | None = field(default=None, repr=False)
    _replica_reads: ReplicaReads | None = field(default=None, repr=False)
    _roles: frozenset[str] | None = field(default=None, repr=False)
    _can_submit_as_role: bool | None = field(default=None, repr=False)
    _given_store: ObjectStore | None = field(default=None, repr=False)
    _before_redirection: dict[str, Any] | None = field(default=None, repr=False)

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
            AlertService(database, settings),
            UserSessionStore(database, settings),
            SubmitBatcher(database),
            _given_store=store,
        )

    async def fetch_allowed_roles(self) -> frozenset[str]:
        """Return the database roles that requests may act as. Only the first call queries the database."""
        if self._roles is None:
            async with self.database.connection() as connection:
                self._roles = await access.list_usable_roles(connection)
        return self._roles

    async def can_submit_as_role(self) -> bool:
        """Return whether jobs can be submitted in one call. Only the first call queries the database."""
        if self._can_submit_as_role is None:
            async with self.database.connection() as connection:
                self._can_submit_as_role = await access.can_submit_as_role(connection)
        return self._can_submit_as_role

    def get_store(self) -> ObjectStore:
        """Return the object store. The first call opens the store that is configured in the settings."""
        if self.store is None:
            self.store = open_store(self.settings)
        return self.store

    def get_replica_reads(self) -> ReplicaReads:
        """Return what runs reads on the replica. Only for lists, search and metrics, never for decisions."""
        if self._replica_reads is None:
            self._replica_reads = ReplicaReads(self.database, self.settings)
        return self._replica_reads

    def get_client(self) -> Client:
        """Return the client of the application, which uses its database, settings and object store."""
        if self._client is None and self.shards is not None:
            self._client = self.shards.get_client()
            self._client.files.store = self.store or self._client.files.store
        if self._client is None:
            self._client = Client(self.database.url.reveal(), settings=self.settings)
            if self.store is not None:
                self._client.files.store = self.store
        return self._client

    async def close(self) -> None:
        """Stop the background work of the application and close its client."""
        self.metrics.stop()
        await self.alerts.stop()
        await self.event_hub.stop_delivery()
        await self.access_monitor.stop()
        if self._replica_reads is not None:
            await self._replica_reads.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def redirect(self, redirection: Redirection) -> None:
        """Use the database, the files and the signing key of a test, until `end_redirection`.

        The object stays the same, because the routes and the dashboard hold it. All that it has cached and
        opened belongs to the other database and is kept aside.
        """
        settings = redirection.adapt_settings(self.settings)
        fresh = AppServices.create(
            Database(redirection.url, settings),
            settings,
            store=self._given_store,
            job_types=self.job_types,
            tasks=self.tasks,
        )
        fresh.metric_sources = self.metric_sources
        before = vars(self).copy()
        vars(self).update(vars(fresh), _before_redirection=before)

    async def end_redirection(self) -> None:
        """Close what was opened on the database of the test, and return to the own database."""
        if self._before_redirection is None:
            return
        try:
            async with asyncio.timeout(TEST_DATABASE_CLOSE_TIMEOUT_S):
                await self.close()
                await self.database.close()
        except (RuntimeError, TimeoutError):  # opened in another event loop, which has ended
            self.database.abandon()
        vars(self).update(self._before_redirection)


@dataclass
class ShardServices:
    """The services of each shard of an application whose setting `shards` names several databases.

    The first shard has what is not about jobs: sessions of people, and tables of systems.
    """

    router: ShardRouter[Database]
    settings: Settings
    by_number: dict[int, AppServices] = field(default_factory=dict[int, AppServices])
    _client: Client | None = None

    @classmethod
    def create(
        cls,
        settings: Settings,
        *,
        store: ObjectStore | None = None,
        job_types: Mapping[str, JobType[Any]] | None = None,
        tasks: Mapping[str, Task[..., Any]] | None = None,
    ) -> ShardServices:
        """Create the services of all shards of the setting `shards`, without opening a connection."""
        urls = parse_shards(settings.shards.reveal() if settings.shards else "")
        # A read replica belongs to one database, so with shards there is none.
        single = replace(settings, shards=None, read_url=None)

        def open_shard(url: Secret) -> Database:
            return Database(url, replace(single, database_url=url))

        shards = cls(ShardRouter(urls, open_shard), settings)
        databases = {number: shard.connections for number, shard in shards.router.shards.items()}
        for number, database in databases.items():
            services = AppServices.create(
                database, database.settings, store=store, job_types=job_types, tasks=tasks
            )
            others = [other for other in databases.values() if other is not database]
            services.key_verifier = ServiceKeyVerifier(database, single, others)
            services.shards = shards
            shards.by_number[number] = services
            services.token_verifier = shards.first.token_verifier
            services.rate_limiter = shards.first.rate_limiter
            services.user_sessions = shards.first.user_sessions
            services.access_monitor = shards.first.access_monitor  # of sessions, which the first shard has
        return shards

    @property
    def first(self) -> AppServices:
        """The services of the shard with the lowest number."""
        return next(iter(self.by_number.values()))

    def get_client(self) -> Client:
        """Return a client of all shards."""
        if self._client is None:
            self._client = Client(settings=self.settings)
        return self._client

    async def close(self) -> None:
        """Close the services and the connections of all shards. One that is dead holds up no other."""
        await asyncio.gather(
            *(services.close() for services in self.by_number.values()), return_exceptions=True
        )
        await self.router.close()


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
