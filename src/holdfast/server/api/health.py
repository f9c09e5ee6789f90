"""Whether the process and its database are there."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import install
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.services import get_services


@api_operation("The process answers", tag="health", access="anyone", response=dict[str, str])
async def health(_: Request) -> Response:
    """The process answers."""
    return json_response({"status": "ok"})


@api_operation(
    "The database answers and its schema fits", tag="health", access="anyone", response=dict[str, str]
)
async def ready(request: Request) -> Response:
    """The database answers too, and its schema fits this code."""
    async with get_services(request).database.connection() as connection:
        await install.verify(connection)
    return json_response({"status": "ready"})


def routes() -> list[BaseRoute]:
    return [Route("/healthz", health), Route("/readyz", ready)]
