"""Serve the JavaScript client for browsers: one script without dependencies."""

from __future__ import annotations

from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.server.api.operations import api_operation


@cache
def read_browser_script() -> str:
    """Read the JavaScript client for browsers from its file."""
    return (resources.files("holdfast.server.api") / "static" / "holdfast.js").read_text(encoding="utf-8")


@api_operation(
    "Download the JavaScript client for browsers",
    tag="documentation",
    access="public",
    media_type="text/javascript",
)
async def serve_browser_script(_: Request) -> Response:
    headers = {"Cache-Control": "public, max-age=300", "Cross-Origin-Resource-Policy": "cross-origin"}
    return Response(read_browser_script(), media_type="text/javascript", headers=headers)


def build_browser_client_routes() -> list[BaseRoute]:
    return [Route("/api/holdfast.js", serve_browser_script, methods=["GET"])]
