"""Answer a request with a stream of the changed rows of its user, for the page of a system."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import Client
from holdfast.errors import InvalidError
from holdfast.server import (
    EventFrame,
    EventStreamResponse,
    StreamViewer,
    encode_event_frames,
    get_client,
    parse_last_event_id,
    require_stream_viewer,
    reserve_stream_slot,
)
from holdfast.systems.change_feed import ChangeFeed, ChangeSubscription, Row
from holdfast.systems.request_context import require_owner_id

STREAM_PING_INTERVAL_S: Final = 15.0
CLIENT_RECONNECT_FRAME: Final = b"retry: 2000\n\n"  # milliseconds
# Build what the page receives, in the order of the rows.
BuildItems: TypeAlias = Callable[[Client, Sequence[Row]], Awaitable[Sequence[Any]]]


async def stream_changed_rows(
    request: Request, feed: ChangeFeed, event: str, build_items: BuildItems
) -> Response:
    """Stream each changed row of the user as an event, until the client disconnects.

    The id of an event is a time. A client that reconnects with the last one receives what it missed.
    """
    owner, after = await require_owner_id(request), parse_last_event_id(request)
    viewer = await require_stream_viewer(request, UUID(owner))
    since = None if after is None else convert_milliseconds(after)
    release_slot = reserve_stream_slot(request, viewer)
    subscription = feed.subscribe(get_client(request), owner, since)

    def close_stream() -> None:
        feed.unsubscribe(subscription)
        release_slot()

    frames = _generate_frames(get_client(request), viewer, subscription, event, build_items)
    return EventStreamResponse(frames, viewer.headers, close_stream)


def convert_milliseconds(number: int) -> datetime:
    """Return the time of an event id. Raise `InvalidError` (422) for a number that is no time."""
    try:
        return datetime.fromtimestamp(number / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidError("The last event id is not valid.", field="after") from None


async def _generate_frames(
    client: Client,
    viewer: StreamViewer,
    subscription: ChangeSubscription,
    event: str,
    build_items: BuildItems,
) -> AsyncGenerator[bytes]:
    yield CLIENT_RECONNECT_FRAME
    yield b": connected\n\n"
    while await viewer.has_access():
        rows = await subscription.take_rows(STREAM_PING_INTERVAL_S)
        if not rows:
            yield b": ping\n\n"
        for row, item in zip(rows, await build_items(client, rows), strict=True):
            number = int(row["updated_at"].timestamp() * 1000)
            for frame in encode_event_frames([EventFrame(event, msgspec.to_builtins(item))], number):
                yield frame
