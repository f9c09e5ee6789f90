"""Endpoints for imports: a browser's bookmarks file or a list of URLs, saved at once."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import InvalidError
from holdfast.server import (
    api_operation,
    ensure_exists,
    json_response,
    parse_json,
    parse_path_uuid,
    read_body,
    transaction_as_caller,
)
from holdfast.systems.bookmarks import queries
from holdfast.systems.bookmarks.additions import MAX_IMPORTED_URLS, BookmarkLimits, add_import
from holdfast.systems.bookmarks.bookmark_endpoints import BOOKMARKS_API_PATH
from holdfast.systems.bookmarks.bookmark_urls import BookmarkUrl, parse_bookmark_url
from holdfast.systems.bookmarks.http_responses import ImportProgress, build_import_progress
from holdfast.systems.request_context import get_systems_schema, require_owner_id

MAX_IMPORT_BYTES: Final = 10 * 1024 * 1024  # browsers put an icon beside each URL
MAX_LINKS_IN_FILE: Final = 100_000


class ImportEndpoints:
    """HTTP endpoints for imports, with limits for each user."""

    def __init__(self, limits: BookmarkLimits) -> None:
        self._limits = limits

    def create_routes(self) -> list[BaseRoute]:
        start = api_operation(
            "Import a bookmarks file (text/html) or up to 1,000 URLs (JSON or text/plain)",
            tag="bookmarks",
            scope="jobs",
            status=202,
            response=ImportProgress,
        )(self.start_import)
        progress = api_operation(
            "Get the progress of an import", tag="bookmarks", scope="jobs", response=ImportProgress
        )(self.get_import)
        path = f"{BOOKMARKS_API_PATH}/import"
        return [
            Route(path, start, methods=["POST"]),
            Route(f"{path}/{{id}}", progress, methods=["GET"]),
        ]

    async def start_import(self, request: Request) -> Response:
        owner, schema = await require_owner_id(request), get_systems_schema(request)
        texts = read_import_urls(
            request.headers.get("content-type", ""), await read_body(request, MAX_IMPORT_BYTES)
        )
        urls, refused = parse_import_urls(texts)
        async with transaction_as_caller(request, as_service=True) as connection:
            import_id = await add_import(connection, schema, owner, urls, refused, self._limits)
            row = await queries.find_import_progress(connection, schema, import_id, owner)
        progress = build_import_progress(ensure_exists(row, f"Import {import_id}"))
        return json_response(progress, 202, {"Location": f"{BOOKMARKS_API_PATH}/import/{import_id}"})

    async def get_import(self, request: Request) -> Response:
        owner, import_id = await require_owner_id(request), parse_path_uuid(request)
        async with transaction_as_caller(request) as connection:
            schema = get_systems_schema(request)
            row = await queries.find_import_progress(connection, schema, import_id, owner)
        return json_response(build_import_progress(ensure_exists(row, f"Import {import_id}")))


def read_import_urls(content_type: str, body: bytes) -> list[str]:
    """Return the URLs of a bookmarks file, of JSON (`{"urls": [...]}`) or of a text with one per line."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in ("", "application/json"):
        value: Any = parse_json(body or b"{}")
        urls: Any = cast("dict[str, Any]", value).get("urls") if isinstance(value, dict) else None
        items = cast("list[object]", urls) if isinstance(urls, list) else [None]
        if not all(isinstance(item, str) for item in items):
            raise InvalidError("urls must be a list of texts.", field="urls")
        return cast("list[str]", items)
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    if media_type == "text/html" or text.lstrip()[:20].lower().startswith(("<!doctype", "<html", "<dl")):
        parser = _LinkParser()
        parser.feed(text)
        return parser.urls
    if media_type == "text/plain":
        return [line.strip() for line in text.splitlines() if line.strip()]
    raise InvalidError(
        "The content type must be application/json, text/html or text/plain.", field="content-type"
    )


class _LinkParser(HTMLParser):
    """Reads the links of a bookmarks file in the format that all browsers export."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        url = dict(attrs).get("href") if tag == "a" else None
        # Browsers also export bookmarklets, folders and their own pages.
        if url and url.lower().startswith(("http://", "https://")) and len(self.urls) < MAX_LINKS_IN_FILE:
            self.urls.append(url)


def parse_import_urls(texts: list[str]) -> tuple[list[BookmarkUrl], int]:
    """Return the distinct valid URLs, and how many texts are no valid URL."""
    urls: dict[str, BookmarkUrl] = {}
    refused = 0
    for text in texts:
        try:
            url = parse_bookmark_url(text)
        except InvalidError:
            refused += 1
        else:
            urls.setdefault(url.normalized, url)
    if not urls:
        raise InvalidError("The import has no valid URL.", fix="Send http:// or https:// URLs.", field="urls")
    if len(urls) > MAX_IMPORTED_URLS:
        raise InvalidError(
            f"The import has {len(urls)} URLs; the maximum is {MAX_IMPORTED_URLS}.",
            fix="Import them in several parts.",
            field="urls",
        )
    return list(urls.values()), refused
