"""Health checks: whether the process is running and whether it can serve requests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import install
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.services import get_services


@api_operation("Check that the process is running", tag="health", access="public", response=dict[str, str])
async def check_liveness(_: Request) -> Response:
    return json_response({"status": "ok"})


@api_operation(
    "Check that the database is available and has the right schema version",
    tag="health",
    access="public",
    response=dict[str, str],
)
async def check_readiness(request: Request) -> Response:
    async with get_services(request).database.connection() as connection:
        await install.verify_schema(connection)
    return json_response({"status": "ready"})


def build_health_routes() -> list[BaseRoute]:
    return [Route("/healthz", check_liveness), Route("/readyz", check_readiness)]
