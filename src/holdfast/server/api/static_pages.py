"""Serve the files of a folder as pages under a strict content security policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.server.api.operations import Endpoint, api_operation

PageSource: TypeAlias = str | Callable[[Request], str]
MEDIA_TYPE_BY_SUFFIX = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
STATIC_PAGE_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def create_static_page_routes(path: str, *folders: Path, index: PageSource | None = None) -> list[BaseRoute]:
    """Return routes that serve `index.html` at `path`, and the other files of the folders below that path.

    `index` is the HTML of the page if you build it yourself, or a function that builds it for each request;
    then only scripts, styles and images of the folders are served. Files are read once. If two folders have a
    file of the same name, the last folder wins. The content security policy allows only files and connections
    of your own origin: no inline script, no inline style, no HTML from text (`innerHTML`) and nothing from
    other sites.

    >>> from pathlib import Path, PurePath
    >>> from tempfile import mkdtemp
    >>> from holdfast.server import create_static_page_routes
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "index.html").write_text("<!doctype html><title>Notes</title>")
    >>> routes = create_static_page_routes("/notes", folder)  # create_app(routes=routes)
    """
    files = {
        file.name: file
        for folder in folders
        for file in folder.iterdir()
        if file.suffix in MEDIA_TYPE_BY_SUFFIX and (index is None or file.suffix != ".html")
    }
    page = files.pop("index.html").read_bytes() if index is None else index
    return [
        Route(path, _create_file_endpoint("index.html", page), methods=["GET"]),
        *(
            Route(f"{path}/{name}", _create_file_endpoint(name, file.read_bytes()), methods=["GET"])
            for name, file in sorted(files.items())
        ),
    ]


def _create_file_endpoint(name: str, content: bytes | PageSource) -> Endpoint:
    media_type = MEDIA_TYPE_BY_SUFFIX[PurePath(name).suffix]

    @api_operation(f"Fetch the page file {name}", tag="pages", access="public", media_type=media_type)
    async def serve_static_file(request: Request) -> Response:
        headers = {"Content-Security-Policy": STATIC_PAGE_SECURITY_POLICY, "Cache-Control": "no-cache"}
        body = content(request) if callable(content) else content
        return Response(body, media_type=media_type, headers=headers)

    return serve_static_file
