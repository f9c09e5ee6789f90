"""What the routes work with. One object per application, found from any request that passes through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import HTTPConnection

from holdfast.definitions.job_types import JobType
from holdfast.definitions.tasks import Task
from holdfast.engine import access
from holdfast.engine.connection import Database
from holdfast.engine.rpc import Catalogue
from holdfast.server.api.hub import Hub
from holdfast.server.api.keyring import KeyRing
from holdfast.server.api.rates import Rates
from holdfast.server.api.tokens import Tokens
from holdfast.settings import Settings
from holdfast.worker.metrics import Metrics

PLACE = "holdfast"


@dataclass
class Services:
    database: Database
    settings: Settings
    store: Any
    types: Mapping[str, JobType[Any]]
    tasks: Mapping[str, Task[..., Any]]
    listener: Hub
    tokens: Tokens
    keys: KeyRing
    rates: Rates
    functions: Catalogue = field(default_factory=Catalogue, repr=False)
    metrics: Metrics = field(default_factory=Metrics, repr=False)
    _roles: frozenset[str] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        database: Database,
        settings: Settings,
        *,
        store: Any = None,
        types: Mapping[str, JobType[Any]] | None = None,
        tasks: Mapping[str, Task[..., Any]] | None = None,
    ) -> Services:
        return cls(
            database,
            settings,
            store,
            types or {},
            tasks or {},
            Hub(database, settings),
            Tokens(settings),
            KeyRing(database, settings),
            Rates(settings.api_rate, settings.api_burst),
        )

    async def roles(self) -> frozenset[str]:
        """The roles that requests may act as; asked once."""
        if self._roles is None:
            async with self.database.connection() as connection:
                self._roles = await access.usable_roles(connection)
        return self._roles

    async def close(self) -> None:
        self.metrics.stop()
        await self.listener.stop()


def services_of(request: HTTPConnection) -> Services:
    return cast("Services", request.scope[PLACE])
