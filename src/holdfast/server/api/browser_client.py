"""The client for browsers: one script without dependencies, served beside the API that it calls."""

from __future__ import annotations

from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.server.api.operations import api_operation


@cache
def script_text() -> str:
    return (resources.files("holdfast.server.api") / "static" / "holdfast.js").read_text(encoding="utf-8")


@api_operation("The client for browsers", tag="about", access="anyone", media_type="text/javascript")
async def script(_: Request) -> Response:
    headers = {"Cache-Control": "public, max-age=300", "Cross-Origin-Resource-Policy": "cross-origin"}
    return Response(script_text(), media_type="text/javascript", headers=headers)


def routes() -> list[BaseRoute]:
    return [Route("/api/holdfast.js", script, methods=["GET"])]
