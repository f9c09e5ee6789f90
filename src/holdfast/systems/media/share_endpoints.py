"""Endpoints for users: add, list, watch, retry and delete shares, and download their files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from holdfast import Client
from holdfast.errors import (
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    QuotaExceededError,
    TooManyRequestsError,
)
from holdfast.server import (
    api_operation,
    get_client,
    get_settings,
    identify_caller,
    json_response,
    parse_body,
    parse_query,
    transaction_as_caller,
)
from holdfast.systems.change_feed import ChangeFeed
from holdfast.systems.change_stream import STREAM_PING_INTERVAL_S, stream_changed_rows
from holdfast.systems.media import share_queries as queries
from holdfast.systems.media.share_feed import ShareFeed
from holdfast.systems.media.share_streams import (
    ShareSubscription,
    stream_share_progress,
)
from holdfast.systems.media.share_urls import (
    ShareUrl,
    check_share_address,
    is_premium_user,
    parse_share_url,
)
from holdfast.systems.media.share_views import (
    Share,
    ShareList,
    build_share,
    build_share_with_files,
    build_shares,
    list_share_files,
    parse_share_id,
)
from holdfast.systems.media.worker_state import create_download_policy
from holdfast.systems.owned_files import FILE_LINK_LIFETIME
from holdfast.systems.request_context import find_owned_file, get_systems_schema, require_owner_id

SHARES_API_PATH: Final = "/api/v1/shares"
MAX_LIST_LIMIT: Final = 200
SECONDS_PER_HOUR: Final = 3600
DOWNLOAD_STATUSES: Final = ("pending", "processing", "retry", "completed", "failed")
ADD_RESPONSES: Final = {
    200: "The user has shared this URL before",
    422: "The URL is not valid or not allowed",
    429: "The user has added too many shares in this hour",
    507: "The storage of the user is full",
}


class AddShareRequest(msgspec.Struct):
    """A link to share. `language` is the language that is spoken, if it is known."""

    url: Any
    transcribe: bool = True
    language: str | None = None


class ShareListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Filters of the list. `before` is the id of the last share on the previous page."""

    status: str | None = None
    before: UUID | None = None
    limit: int = 50


class FileQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which file to download: the media, or one that was made of it. `as=json` returns the link."""

    kind: str = "media"
    name: str | None = None
    response: str = msgspec.field(default="redirect", name="as")


class ShareEndpoints:
    """HTTP endpoints of the media system."""

    def __init__(self) -> None:
        self._feed = ShareFeed()
        self._changes = ChangeFeed(queries.list_changed_shares)

    def create_routes(self) -> list[BaseRoute]:
        endpoints: list[tuple[str, str, Any, str, dict[str, Any]]] = [
            (
                *("POST", "", self.add_share, "Share a link: download, process and transcribe its media"),
                {"body": AddShareRequest, "response": Share, "status": 202, "other_responses": ADD_RESPONSES},
            ),
            (
                "GET",
                "",
                self.list_shares,
                "List your shares",
                {"query": ShareListQuery, "response": ShareList},
            ),
            (
                *("GET", "/stream", self.stream_shares, "Stream the changes of your shares"),
                {"media_type": "text/event-stream"},
            ),
            ("GET", "/{id}", self.get_share, "Get a share with its files", {"response": Share}),
            (
                *("GET", "/{id}/events", self.stream_share, "Stream the progress of a share"),
                {"media_type": "text/event-stream"},
            ),
            ("DELETE", "/{id}", self.delete_share, "Cancel a share and delete its files", {"status": 204}),
            (
                *("POST", "/{id}/retry", self.retry_share, "Run what has failed again"),
                {"response": Share, "status": 202, "other_responses": {409: "Nothing has failed"}},
            ),
            (
                *("GET", "/{id}/file", self.redirect_to_file, "Download a file of a share, or play it"),
                {
                    "query": FileQuery,
                    "status": 302,
                    "other_responses": {409: "The download is not complete", 410: "The file was deleted"},
                },
            ),
        ]
        return [
            Route(
                SHARES_API_PATH + path,
                api_operation(summary, tag="media", scope="jobs", **options)(endpoint),
                methods=[method],
            )
            for method, path, endpoint, summary, options in endpoints
        ]

    async def add_share(self, request: Request) -> Response:
        """Add a share and start its download if there is room. The same URL is one share."""
        owner, body = await require_owner_id(request), await parse_body(request, AddShareRequest)
        settings, client = get_settings(request), get_client(request)
        url = parse_share_url(body.url, settings)
        options = _check_options(body)
        await check_share_address(url, create_download_policy(settings))
        premium = is_premium_user((await identify_caller(request)).claims, settings)
        share_id, created = await _find_or_add_share(request, owner, url, premium=premium, options=options)
        if created:
            async with client.connection() as connection:
                await queries.start_downloads(connection, get_systems_schema(request))
        status = 202 if created else 200
        if settings.async_downloads_enabled == "off":
            return self._respond_when_finished(client, share_id)
        location = {"Location": f"{SHARES_API_PATH}/{share_id}"}
        return json_response(build_share(await _load_share(request, share_id)), status, location)

    def _respond_when_finished(self, client: Client, share_id: UUID) -> Response:
        """Answer with the share when its job has ended. Spaces before the JSON keep the connection open.

        A client that disconnects ends the response and not the job.
        """

        async def generate() -> AsyncGenerator[bytes]:
            with contextlib.closing(ShareSubscription(self._feed, client, share_id)) as subscription:
                while True:
                    row, gone = await subscription.watch.take_row(STREAM_PING_INTERVAL_S)
                    if gone:
                        yield msgspec.json.encode({"id": share_id, "download_status": "deleted"})
                        return
                    if row is not None and queries.is_share_finished(row):
                        yield msgspec.json.encode(await build_share_with_files(client, row))
                        return
                    yield b" "

        return StreamingResponse(generate(), 200, media_type="application/json")

    async def list_shares(self, request: Request) -> Response:
        owner, query = await require_owner_id(request), parse_query(request, ShareListQuery)
        if not 1 <= query.limit <= MAX_LIST_LIMIT:
            raise InvalidError(f"limit must be from 1 to {MAX_LIST_LIMIT}.", field="limit")
        if query.status is not None and query.status not in DOWNLOAD_STATUSES:
            raise InvalidError(f"status must be one of {', '.join(DOWNLOAD_STATUSES)}.", field="status")
        schema = get_systems_schema(request)
        async with transaction_as_caller(request) as connection:
            rows = await queries.list_shares(
                connection, schema, owner, status=query.status, before=query.before, limit=query.limit + 1
            )
            usage = await queries.get_user_usage(connection, schema, owner)
        has_more, rows = len(rows) > query.limit, rows[: query.limit]
        return json_response(
            ShareList(
                shares=await build_shares(get_client(request), rows),
                next=rows[-1]["id"] if has_more else None,
                used_bytes=usage.bytes,
                max_bytes=get_settings(request).media_user_bytes,
            )
        )

    async def get_share(self, request: Request) -> Response:
        row = await _load_share(request)
        return json_response(await build_share_with_files(get_client(request), row))

    async def stream_shares(self, request: Request) -> Response:
        """Stream each changed share as an event `share`, until the client disconnects.

        The id of an event is a time. A client that reconnects with the last one receives what it missed.
        """
        return await stream_changed_rows(request, self._changes, "share", build_shares)

    async def stream_share(self, request: Request) -> Response:
        """Stream `progress` events with status and bytes, then `end`, when nothing changes any more."""
        return await stream_share_progress(request, self._feed, await _load_share(request))

    async def delete_share(self, request: Request) -> Response:
        owner, share_id = await require_owner_id(request), parse_share_id(request.path_params["id"])
        schema = get_systems_schema(request)
        async with transaction_as_caller(request, as_service=True) as connection:
            if not await queries.delete_share(connection, schema, share_id, owner):
                raise NotFoundError(f"Share {share_id} does not exist.")
        return Response(status_code=204)

    async def retry_share(self, request: Request) -> Response:
        row, schema = await _load_share(request), get_systems_schema(request)
        async with transaction_as_caller(request, as_service=True) as connection:
            if row["download_status"] == "failed":
                await queries.restart_download(connection, schema, row["id"])
            elif row["processing_status"] == "failed":
                await queries.restart_work(connection, schema, row["id"], row["job_id"], "process")
            elif row["transcript_status"] == "failed":
                await queries.restart_work(connection, schema, row["id"], row["job_id"], "transcribe")
            else:
                raise ConflictError(
                    f"Nothing of share {row['id']} has failed; its download is {row['download_status']}.",
                    fix="Retry a share whose download, processing or transcript has failed.",
                )
        async with get_client(request).connection() as connection:
            await queries.start_downloads(connection, schema)
        return json_response(build_share(await _load_share(request)), 202)

    async def redirect_to_file(self, request: Request) -> Response:
        """Redirect to a signed link that works for an hour and answers range requests."""
        query, row = parse_query(request, FileQuery), await _load_share(request)
        if row["download_status"] != "completed":
            raise ConflictError(
                f"The download of share {row['id']} is {row['download_status']}.",
                fix="Wait until it is completed.",
            )
        client = get_client(request)
        if query.kind == "media":
            file = await find_owned_file(request, row["file_id"], str(row["user_id"]))
            if file is None:
                raise GoneError("The file was deleted.", fix="Share the link again.")
            url = await client.files.create_download_link(file, FILE_LINK_LIFETIME, inline=True)
        else:
            files = [
                file
                for file in await list_share_files(client, row)
                if file.kind == query.kind and query.name in (None, file.name)
            ]
            if not files:
                raise NotFoundError(f"Share {row['id']} has no file of kind {query.kind!r}.", field="kind")
            url = files[-1].url
        if query.response == "json":
            return json_response({"url": url, "expiresIn": int(FILE_LINK_LIFETIME.total_seconds())})
        return RedirectResponse(url, 302)


def _check_options(body: AddShareRequest) -> dict[str, Any]:
    language = body.language
    if language is not None and not (2 <= len(language) <= 3 and language.isascii() and language.isalpha()):
        raise InvalidError("language must be a code such as en or de.", field="language")
    return {"transcribe": body.transcribe, **({"language": language.lower()} if language else {})}


async def _find_or_add_share(
    request: Request, owner: str, url: ShareUrl, *, premium: bool, options: dict[str, Any]
) -> tuple[UUID, bool]:
    """Return the id of the user's share of this URL, and whether it is new."""
    schema, settings = get_systems_schema(request), get_settings(request)
    async with transaction_as_caller(request, as_service=True) as connection:
        await queries.lock_user(connection, owner)
        existing = await queries.find_share_by_url(connection, schema, owner, url)
        if existing is not None:
            return existing, False
        usage = await queries.get_user_usage(connection, schema, owner)
        if usage.added >= settings.media_user_rate:
            raise TooManyRequestsError(
                f"You may add {settings.media_user_rate} shares in an hour.",
                fix="Try again in the next hour.",
                retry_after=SECONDS_PER_HOUR,
            )
        if usage.bytes >= settings.media_user_bytes:
            used, limit = usage.bytes / 1024**2, settings.media_user_bytes / 1024**2
            raise QuotaExceededError(
                f"Your storage is full ({used:,.0f} MB of {limit:,.0f} MB).",
                fix="Delete shares that you do not need.",
            )
        await queries.count_added_share(connection, schema, owner)
        share_id = await queries.add_share(connection, schema, owner, url, premium=premium, options=options)
    return share_id, True


async def _load_share(request: Request, share_id: UUID | None = None) -> queries.Row:
    owner = await require_owner_id(request)
    share_id = share_id or parse_share_id(request.path_params["id"])
    async with transaction_as_caller(request) as connection:
        row = await queries.find_share(connection, get_systems_schema(request), share_id, owner)
    if row is None:
        raise NotFoundError(f"Share {share_id} does not exist.")
    return row
