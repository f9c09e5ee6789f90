"""Stream the progress of one share, until nothing changes any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import Client
from holdfast.server import (
    EventFrame,
    EventStreamResponse,
    StreamViewer,
    encode_event_frames,
    get_client,
    require_stream_viewer,
    reserve_stream_slot,
)
from holdfast.systems.change_stream import CLIENT_RECONNECT_FRAME, STREAM_PING_INTERVAL_S
from holdfast.systems.media import share_queries as queries
from holdfast.systems.media.share_feed import ShareFeed, ShareWatch
from holdfast.systems.media.share_views import build_share, build_share_with_files


class ShareSubscription:
    """A watcher of a share that can be closed more than once."""

    def __init__(self, feed: ShareFeed, client: Client, share_id: UUID) -> None:
        self._feed = feed
        self.watch = feed.watch(client, share_id)

    def close(self) -> None:
        self._feed.unwatch(self.watch)


async def stream_share_progress(request: Request, feed: ShareFeed, row: queries.Row) -> Response:
    """Answer with `progress` events of a share, then `end` with the share, or `deleted`."""
    viewer = await require_stream_viewer(request, row["user_id"])
    release_slot = reserve_stream_slot(request, viewer)
    subscription = ShareSubscription(feed, get_client(request), row["id"])

    def close_stream() -> None:
        subscription.close()
        release_slot()

    frames = _generate_frames(get_client(request), viewer, subscription.watch)
    return EventStreamResponse(frames, viewer.headers, close_stream)


async def _generate_frames(client: Client, viewer: StreamViewer, watch: ShareWatch) -> AsyncGenerator[bytes]:
    yield CLIENT_RECONNECT_FRAME
    number = 0
    while await viewer.has_access():
        row, gone = await watch.take_row(STREAM_PING_INTERVAL_S)
        frames: list[EventFrame] = []
        if gone:
            frames = [EventFrame("deleted", {"id": str(watch.share_id)})]
        elif row is None:
            yield b": ping\n\n"
            continue
        else:
            frames = [EventFrame("progress", _build_event_body(row))]
            if queries.is_share_finished(row):
                share = await build_share_with_files(client, row)
                frames.append(EventFrame("end", msgspec.to_builtins(share)))
        for frame in encode_event_frames(frames, number):
            yield frame
        number += len(frames)
        if frames[-1].event != "progress":
            return


def _build_event_body(row: queries.Row) -> dict[str, Any]:
    share = build_share(row)
    body: dict[str, Any] = msgspec.to_builtins(share.progress)
    return {
        "id": str(share.id),
        "status": share.download_status,
        "error": share.download_error,
        "processingStatus": share.processing_status,
        "transcriptStatus": share.transcript_status,
        **body,
    }
