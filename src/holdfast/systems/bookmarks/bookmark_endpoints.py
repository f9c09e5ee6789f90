"""Endpoints for users: add, list, search, retry and delete bookmarks, and stream their changes."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import InvalidError, NotFoundError
from holdfast.server import (
    api_operation,
    get_client,
    json_response,
    parse_body,
    parse_query,
    transaction_as_caller,
)
from holdfast.systems.bookmarks import queries
from holdfast.systems.bookmarks.additions import BookmarkLimits, add_bookmark, retry_bookmark
from holdfast.systems.bookmarks.bookmark_urls import parse_bookmark_url
from holdfast.systems.bookmarks.http_responses import (
    Bookmark,
    BookmarkDetails,
    build_bookmarks,
    parse_bookmark_id,
)
from holdfast.systems.bookmarks.messages import MAX_BOOKMARK_ID
from holdfast.systems.change_feed import ChangeFeed
from holdfast.systems.change_stream import stream_changed_rows
from holdfast.systems.request_context import get_systems_schema, require_owner_id

BOOKMARKS_API_PATH: Final = "/api/v1/bookmarks"
MAX_LIST_LIMIT: Final = 200
ADD_RESPONSES: Final = {
    422: "The URL is not valid",
    429: "Too many bookmarks are waiting",
    507: "The user has too many bookmarks",
}


class AddBookmarkRequest(msgspec.Struct):
    """A URL to save. Without `update_access`, the bookmark is saved without its category."""

    url: Any
    category_id: int | None = None
    update_access: bool | None = None


class BookmarkListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Filters of the list. `before` is the id of the last bookmark on the previous page."""

    q: str = ""
    category: int | None = None
    before: int | None = None
    limit: int = 60


class BookmarkList(msgspec.Struct, kw_only=True):
    """A page of bookmarks, newest first. `next` is the parameter `before` of the next page."""

    bookmarks: list[Bookmark]
    categories: list[int]
    next: int | None
    total: int
    limit: int


class BookmarkEndpoints:
    """HTTP endpoints for the bookmarks of a user, with limits for each user."""

    def __init__(self, limits: BookmarkLimits) -> None:
        self._limits = limits
        self._feed = ChangeFeed(queries.list_changed_bookmarks)

    def create_routes(self) -> list[BaseRoute]:
        endpoints: list[tuple[str, str, Any, str, dict[str, Any]]] = [
            (
                *("POST", "/add/data", self.add_bookmark, "Save a URL"),
                {"body": AddBookmarkRequest, "response": Bookmark, "other_responses": ADD_RESPONSES},
            ),
            (
                *("GET", "", self.list_bookmarks, "List and search your bookmarks"),
                {"query": BookmarkListQuery, "response": BookmarkList},
            ),
            (
                *("GET", "/stream", self.stream_changes, "Stream the changes of your bookmarks"),
                {"media_type": "text/event-stream"},
            ),
            (
                *("GET", "/{id}", self.get_bookmark, "Get a bookmark and the text of its page"),
                {"response": BookmarkDetails},
            ),
            (
                *("DELETE", "/{id}", self.delete_bookmark, "Delete a bookmark and its files"),
                {"status": 204},
            ),
            (
                *("POST", "/{id}/retry", self.retry_bookmark, "Run the failed steps of a bookmark again"),
                {"response": Bookmark, "other_responses": {409: "The bookmark has not failed"}},
            ),
        ]
        return [
            Route(
                BOOKMARKS_API_PATH + path,
                api_operation(summary, tag="bookmarks", scope="jobs", **options)(endpoint),
                methods=[method],
            )
            for method, path, endpoint, summary, options in endpoints
        ]

    async def add_bookmark(self, request: Request) -> Response:
        """Save a URL: the row and its message in one transaction. A URL that is saved returns its row."""
        owner, body = await require_owner_id(request), await parse_body(request, AddBookmarkRequest)
        url = parse_bookmark_url(body.url)
        if body.category_id is not None and not 0 <= body.category_id <= MAX_BOOKMARK_ID:
            raise InvalidError("category_id must be a positive whole number.", field="category_id")
        category_id = body.category_id if body.update_access else None
        schema = get_systems_schema(request)
        async with transaction_as_caller(request, as_service=True) as connection:
            row = await add_bookmark(connection, schema, owner, url, category_id, self._limits)
        [bookmark] = await build_bookmarks(get_client(request), [row])
        return json_response(bookmark)

    async def list_bookmarks(self, request: Request) -> Response:
        owner, query = await require_owner_id(request), parse_query(request, BookmarkListQuery)
        if not 1 <= query.limit <= MAX_LIST_LIMIT:
            raise InvalidError(f"limit must be from 1 to {MAX_LIST_LIMIT}.", field="limit")
        for name in ("category", "before"):
            value: int | None = getattr(query, name)
            if value is not None and not 0 <= value <= MAX_BOOKMARK_ID:
                raise InvalidError(f"{name} must be a positive whole number.", field=name)
        filters = queries.BookmarkFilter(
            text=query.q, category_id=query.category, before=query.before, limit=query.limit + 1
        )
        schema = get_systems_schema(request)
        async with transaction_as_caller(request) as connection:
            rows = await queries.list_bookmarks(connection, schema, owner, filters)
            categories = await queries.list_categories(connection, schema, owner)
            total, _ = await queries.count_bookmarks(connection, schema, owner)
        has_more, rows = len(rows) > query.limit, rows[: query.limit]
        return json_response(
            BookmarkList(
                bookmarks=await build_bookmarks(get_client(request), rows),
                categories=categories,
                next=rows[-1]["id"] if has_more else None,
                total=total,
                limit=self._limits.max_bookmarks,
            )
        )

    async def get_bookmark(self, request: Request) -> Response:
        bookmark = await _load_bookmark(request)
        async with transaction_as_caller(request) as connection:
            schema, owner = get_systems_schema(request), str(bookmark.user_id)
            page_text = await queries.find_page_text(connection, schema, bookmark.id, owner)
        return json_response(BookmarkDetails(**msgspec.structs.asdict(bookmark), page_text=page_text))

    async def delete_bookmark(self, request: Request) -> Response:
        owner, bookmark_id = await require_owner_id(request), parse_bookmark_id(request.path_params["id"])
        async with transaction_as_caller(request, as_service=True) as connection:
            schema = get_systems_schema(request)
            if not await queries.delete_bookmark(connection, schema, bookmark_id, owner):
                raise NotFoundError(f"Bookmark {bookmark_id} does not exist.")
        return Response(status_code=204)

    async def retry_bookmark(self, request: Request) -> Response:
        owner, bookmark_id = await require_owner_id(request), parse_bookmark_id(request.path_params["id"])
        async with transaction_as_caller(request, as_service=True) as connection:
            await retry_bookmark(connection, get_systems_schema(request), owner, bookmark_id)
        return json_response(await _load_bookmark(request))

    async def stream_changes(self, request: Request) -> Response:
        """Stream each changed bookmark as an event `bookmark`, until the client disconnects.

        The id of an event is a time. A client that reconnects with the last one receives what it missed.
        """
        return await stream_changed_rows(request, self._feed, "bookmark", build_bookmarks)


async def _load_bookmark(request: Request) -> Bookmark:
    owner, bookmark_id = await require_owner_id(request), parse_bookmark_id(request.path_params["id"])
    async with transaction_as_caller(request) as connection:
        row = await queries.find_bookmark(connection, get_systems_schema(request), bookmark_id, owner)
    if row is None:
        raise NotFoundError(f"Bookmark {bookmark_id} does not exist.")
    [bookmark] = await build_bookmarks(get_client(request), [row])
    return bookmark
