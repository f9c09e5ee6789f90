"""The small pages of the systems: files beside the code, under a policy that lets nothing else in."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.server.api import operation
from holdfast.server.api.operations import Endpoint

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


def routes(prefix: str, folder: Path) -> list[BaseRoute]:
    """`prefix` is the page, and the other files of the folder lie below it."""
    shared = Path(__file__).parent / "page"
    files = {path.name: path for path in (*shared.iterdir(), *folder.iterdir()) if path.suffix in TYPES}
    index = files.pop("index.html")
    return [
        Route(prefix, _serve(index), methods=["GET"]),
        *(Route(f"{prefix}/{name}", _serve(path), methods=["GET"]) for name, path in files.items()),
    ]


def _serve(path: Path) -> Endpoint:
    content, kind = path.read_bytes(), TYPES[path.suffix]

    @operation(f"The page: {path.name}", tag="pages", access="anyone", media=kind)
    async def serve(_: Request) -> Response:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return Response(content, media_type=kind, headers=headers)

    return serve
