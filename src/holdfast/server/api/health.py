"""Whether the process and its database are there."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import install
from holdfast.server.api.bodies import answer
from holdfast.server.api.operations import operation
from holdfast.server.api.services import services_of


@operation("The process answers", tag="health", access="anyone", answer=dict[str, str])
async def health(_: Request) -> Response:
    """The process answers."""
    return answer({"status": "ok"})


@operation("The database answers and its schema fits", tag="health", access="anyone", answer=dict[str, str])
async def ready(request: Request) -> Response:
    """The database answers too, and its schema fits this code."""
    async with services_of(request).database.connection() as connection:
        await install.verify(connection)
    return answer({"status": "ready"})


def routes() -> list[BaseRoute]:
    return [Route("/healthz", health), Route("/readyz", ready)]
