"""The frames of one open event stream: which are sent, when, and with which id.

Progress is merged to at most four frames per second, however many tasks and files a job has. The newest
progress replaces one that waits, and is sent as soon as its time has come. Other frames are never merged and
never wait, so a waiting progress may follow the frame of a later event; it then carries no id.

The id of a frame says that the client has every event up to this number. A client that reconnects with the
last number of an ended job gets 204. Only `end` may therefore carry that number: a snapshot of an ended job
and the events that follow the end of a job (its files) carry no id.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from holdfast.model import ENDED_STATUSES, Json
from holdfast.server.api.event_frames import (
    EndFrameBuilder,
    EventFrame,
    FrameBuilder,
    encode_event_frames,
    redact_event_frame,
)
from holdfast.server.api.event_hub import END_EVENT_KINDS, EventSubscription, StoredStreamEvent
from holdfast.server.api.stream_sources import JobOrBatchReader
from holdfast.server.api.stream_tickets import StreamViewer

STREAM_PING_INTERVAL_S = 15.0
# A little more than a quarter of a second: a client counts four frames per second also if one arrives late.
MIN_PROGRESS_FRAME_INTERVAL_S = 0.3
CLIENT_RECONNECT_DELAY_MS = 2000
PROGRESS_EVENT = "progress"
ACCESS_END_MESSAGES = {
    "expired": "The token, ticket or key of this stream has expired.",
    "revoked": "The service key of this stream was revoked.",
}


@dataclass(frozen=True)
class WaitingProgress:
    """Frames with progress that wait to be sent, and the id that they carry."""

    frames: Sequence[EventFrame]
    seq: int | None


class EventStreamSession:
    """State of one open event stream: the last sent event and the progress that waits."""

    def __init__(
        self,
        job: dict[str, Json],
        viewer: StreamViewer,
        build_frames: FrameBuilder,
        read: JobOrBatchReader,
        build_end_frames: EndFrameBuilder | None = None,
    ) -> None:
        self._job = job
        self._viewer = viewer
        self._build_frames = build_frames
        self._build_end_frames = build_end_frames
        self._read = read
        self._last_seq = 0
        self._is_ending = False  # an event told the end of the job; `end` follows after its files
        self._progress: WaitingProgress | None = None
        self._progress_sent_at = float("-inf")
        self._merge_progress: bool = getattr(build_frames, "merge_progress", True)

    async def generate_frames(
        self, subscription: EventSubscription, after: int | None, missed: list[StoredStreamEvent] | None
    ) -> AsyncGenerator[bytes]:
        """Yield the encoded frames of the stream until the job ends.

        `EventStreamResponse` stops the stream when the viewer loses access.
        """
        yield f"retry: {CLIENT_RECONNECT_DELAY_MS}\n\n".encode()
        if missed is None:
            yield self._encode_snapshot_frame(resync=after is not None)
            self._last_seq = self._job["event_seq"]
        else:
            self._last_seq = after or 0
        for event in missed or ():
            for frame in self._generate_event_frames(event):
                yield frame
        if self._job["status"] in ENDED_STATUSES:
            yield await self._encode_end_frame(self._job)
            return
        async for frame in self._generate_live_frames(subscription):
            yield frame

    async def _generate_live_frames(self, subscription: EventSubscription) -> AsyncIterator[bytes]:
        pinged_at = time.monotonic()
        while True:
            await subscription.wait_for_event(self._get_wake_time(pinged_at) - time.monotonic())
            # Read before taking the events, so that all events before the end are taken.
            ended = subscription.ended
            for event in subscription.take_events():
                for frame in self._generate_event_frames(event):
                    yield frame
            if subscription.overflowed:
                subscription.overflowed = False
                yield await self._encode_resync_snapshot()
            for frame in self._generate_due_progress():
                yield frame
            if ended is not None:
                yield await self._encode_end_frame(ended)
                return
            if time.monotonic() >= pinged_at + STREAM_PING_INTERVAL_S:
                pinged_at = time.monotonic()
                yield b": ping\n\n"

    def _get_wake_time(self, pinged_at: float) -> float:
        wake_at = pinged_at + STREAM_PING_INTERVAL_S
        if self._progress is not None:
            wake_at = min(wake_at, self._progress_sent_at + MIN_PROGRESS_FRAME_INTERVAL_S)
        return wake_at

    async def _encode_resync_snapshot(self) -> bytes:
        """Read the job again and encode a snapshot, for a client that is too slow to receive every event."""
        async with self._viewer.transaction() as connection:
            job = await self._read(connection, UUID(self._job["id"]))
        self._job = job or self._job
        self._last_seq = self._job["event_seq"]
        self._progress = None
        return self._encode_snapshot_frame(resync=True)

    def _generate_event_frames(self, event: StoredStreamEvent) -> Iterator[bytes]:
        yield from self._encode_event(event)
        yield from self._generate_due_progress()

    def _encode_event(self, event: StoredStreamEvent) -> list[bytes]:
        """Encode the frames of an event that are sent at once, and let its progress wait."""
        if event.seq <= self._last_seq:
            return []
        self._last_seq = event.seq
        if event.kind in END_EVENT_KINDS:
            self._is_ending = event.body.get("status") in ENDED_STATUSES
        has_last_seq = self._job["status"] in ENDED_STATUSES and event.seq >= self._job["event_seq"]
        seq = None if self._is_ending or has_last_seq else event.seq
        progress, others = self._split_progress(event.kind, self._build_viewer_frames(event))
        if progress:
            self._progress = WaitingProgress(progress, None if others else seq)
        elif self._progress is not None:
            self._progress = WaitingProgress(self._progress.frames, None)
        return encode_event_frames(others, seq)

    def _split_progress(
        self, kind: str, frames: Sequence[EventFrame]
    ) -> tuple[Sequence[EventFrame], Sequence[EventFrame]]:
        """Return the frames that may wait and be replaced by later ones, and the others."""
        if not self._merge_progress:
            return [], frames
        if kind == PROGRESS_EVENT:
            return frames, []
        progress = [frame for frame in frames if frame.event == PROGRESS_EVENT]
        return progress, [frame for frame in frames if frame.event != PROGRESS_EVENT]

    def _build_viewer_frames(self, event: StoredStreamEvent) -> Sequence[EventFrame]:
        frames = self._build_frames(event.kind, event.body, self._job)
        return frames if self._viewer.is_service else [redact_event_frame(frame) for frame in frames]

    def _generate_due_progress(self) -> Iterator[bytes]:
        """Yield the progress that waits, if the last one was sent long enough ago."""
        progress = self._progress
        if progress is None or time.monotonic() < self._progress_sent_at + MIN_PROGRESS_FRAME_INTERVAL_S:
            return
        self._progress = None
        yield from encode_event_frames(progress.frames, progress.seq)
        self._progress_sent_at = time.monotonic()  # after a slow client has taken the frame

    def _encode_snapshot_frame(self, *, resync: bool) -> bytes:
        job = self._viewer.redact_job(self._job)
        body = {"job": job, "artifacts": self._job["files"], "resync": resync}
        frames = self._build_frames("snapshot", body, job)
        # A job of one task without an owner ends without an event, so its number stays 0.
        has_last_seq = self._job["status"] in ENDED_STATUSES or self._job["event_seq"] == 0
        return b"".join(encode_event_frames(frames, None if has_last_seq else self._job["event_seq"]))

    async def _encode_end_frame(self, job: dict[str, Json]) -> bytes:
        redacted = self._viewer.redact_job(job)
        if self._build_end_frames is not None:
            frames = await self._build_end_frames(redacted, job["files"])
        else:
            frames = self._build_frames("end", {"job": redacted, "artifacts": job["files"]}, redacted)
        return b"".join(encode_event_frames(frames, max(job["event_seq"], self._last_seq)))

    def encode_access_end_frame(self, reason: str) -> bytes:
        """Encode the last frame of a stream whose viewer lost access: `access_ended` in the API's format."""
        body = {"reason": reason, "message": ACCESS_END_MESSAGES[reason]}
        return b"".join(encode_event_frames(self._build_frames("access_ended", body, self._job), None))
