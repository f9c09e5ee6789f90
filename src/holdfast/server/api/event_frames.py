"""Convert stored events of jobs and batches to frames of a server-sent event stream (format version 2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.model import ENDED_STATUSES, Json
from holdfast.server.api.job_views import redact_error

EVENT_FORMAT_VERSION = 2


@dataclass(frozen=True)
class EventFrame:
    """One frame of an event stream: the name of the event and its JSON body.

    >>> from holdfast.server import EventFrame
    >>> frame = EventFrame("progress", {"percent": 40})
    """

    event: str
    body: Json


FrameBuilder: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any]], Sequence[EventFrame]]
"""A function `(kind, body, job) -> frames` that converts an event of a job to frames.

`kind` is `snapshot`, `end`, `access_ended` or the kind of a stored event: `job`, `tasks`, `progress`,
`artifact`. Return no frames for a kind that you do not know.
"""

EndFrameBuilder: TypeAlias = Callable[[dict[str, Any], "list[Any]"], Awaitable[Sequence[EventFrame]]]
"""An asynchronous function `(job, files) -> frames` that builds the last frames of a job's stream."""


def build_job_frames(kind: str, body: dict[str, Json], job: dict[str, Json]) -> Sequence[EventFrame]:
    """Convert a stored job event to frames of an event stream, in the format of the API."""
    if kind == "snapshot":
        snapshot = build_job_snapshot(body["job"], body["artifacts"], resync=body["resync"])
        return [EventFrame("snapshot", snapshot)]
    if kind == "end":
        return [EventFrame("end", build_job_end_body(body["job"], body["artifacts"]))]
    if kind == "tasks":
        tasks = [
            EventFrame("task", {"name": name, "status": status}) for name, status in body["tasks"].items()
        ]
        return [*tasks, EventFrame("progress", {"percent": body.get("percent"), "task": None})]
    if kind == "job":
        # The end of a job has a frame of its own.
        status = {"status": body.get("status"), "percent": body.get("percent")}
        return [] if body.get("status") in ENDED_STATUSES else [EventFrame("status", status)]
    if kind == "progress":
        return [EventFrame("progress", {**body, "eta_s": estimate_remaining_s(job, body.get("percent"))})]
    return [EventFrame(kind, body)]


def build_batch_frames(kind: str, body: dict[str, Json], batch: dict[str, Json]) -> Sequence[EventFrame]:
    """Convert a stored batch event to frames: `snapshot`, `progress` or `end`, with all job counts."""
    if kind == "snapshot":
        snapshot = {
            "v": EVENT_FORMAT_VERSION,
            "batch": batch["id"],
            "name": batch["name"],
            **_build_batch_counts(batch),
        }
        return [EventFrame("snapshot", {**snapshot, "resync": True} if body["resync"] else snapshot)]
    if kind == "end":
        end = {"batch": batch["id"], **_build_batch_counts(batch), "callback_job": batch["callback_job"]}
        return [EventFrame("end", end)]
    if kind == "access_ended":
        return [EventFrame(kind, body)]
    # The kind "batch" reports the end, which has a frame of its own.
    return [EventFrame("progress", _build_batch_counts(body))] if kind == "progress" else []


def _build_batch_counts(batch: dict[str, Json]) -> dict[str, Json]:
    total, ended = batch["total"], batch["ended"]
    return {
        "status": batch["status"],
        "percent": round(100 * ended / total, 1) if total else None,
        "total": total,
        "ended": ended,
        "failed": batch["failed"],
        "cancelled": batch.get("cancelled", 0),
    }


def build_job_snapshot(job: dict[str, Json], files: list[Json], *, resync: bool = False) -> dict[str, Json]:
    """Build the body of a `snapshot` frame: the whole current state of a job."""
    progress = job["progress"]
    body = {
        "v": EVENT_FORMAT_VERSION,
        "job": job["id"],
        "type": job["type"],
        "status": job["status"],
        "attempt": max((task["attempt"] for task in job["tasks"]), default=0),
        "percent": progress["percent"],
        "phase": progress["phase"],
        "message": progress["message"],
        "done": job["counts"]["total"] - _count_unfinished_tasks(job),
        "total": job["counts"]["total"],
        "eta_s": estimate_remaining_s(job, progress["percent"]),
        "created_at": job["created_at"],
        "started_at": job["started_at"],
        "tasks": [_build_task_frame_body(task) for task in job["tasks"]],
        "artifacts": files,
        "error": job["error"],
    }
    return {**body, "resync": True} if resync else body


def build_job_end_body(job: dict[str, Json], files: list[Json]) -> dict[str, Json]:
    """Build the body of the `end` event, the last event of a job's event stream."""
    return {
        "status": job["status"],
        "percent": job["progress"]["percent"],
        "output": job["output"],
        "error": job["error"],
        "artifacts": files,
        "run_s": _compute_seconds_between(job["started_at"], job["finished_at"]),
        "next": None,
    }


def _build_task_frame_body(task: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": task["id"],
        "name": task["name"],
        "status": task["status"],
        "attempt": task["attempt"],
        "percent": task["progress"]["percent"],
        "error": task["error"],
    }


def _count_unfinished_tasks(job: dict[str, Json]) -> int:
    counts = job["counts"]
    finished = sum(counts[name] for name in ("succeeded", "failed", "cancelled", "skipped"))
    return int(counts["total"] - finished)


def estimate_remaining_s(job: dict[str, Json], percent: float | None) -> int | None:
    """Estimate the seconds until the job ends from its speed so far. Return None below one percent."""
    started_at = job.get("started_at")
    if started_at is None or percent is None or not 1 <= percent < 100:
        return None
    elapsed_s = (datetime.now(UTC) - datetime.fromisoformat(started_at)).total_seconds()
    return max(0, round(elapsed_s * (100 - percent) / percent))


def _compute_seconds_between(start: str | None, end: str | None) -> float | None:
    if start is None or end is None:
        return None
    return round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds(), 3)


def redact_event_frame(frame: EventFrame) -> EventFrame:
    """Return the frame without the parts of an error that users may not see."""
    value: object = frame.body
    body = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
    if body.get("error") is not None:
        return EventFrame(frame.event, {**body, "error": redact_error(body["error"])})
    return frame


def encode_event_frames(frames: Sequence[EventFrame], seq: int | None) -> list[bytes]:
    """Encode the frames of one stored event as server-sent events. `seq` is the number of the event.

    Only the last frame carries the number as its id. A client that loses the connection in between therefore
    gets all of these frames again. With None, no frame has an id.

    >>> from holdfast.server import EventFrame, encode_event_frames
    >>> first, last = encode_event_frames([EventFrame("task", {}), EventFrame("progress", {"percent": 5})], 7)
    >>> assert last.startswith(b"id: 7\\n")
    """
    last = len(frames)
    return [
        _encode_event_frame(frame, seq if place == last else None) for place, frame in enumerate(frames, 1)
    ]


def _encode_event_frame(frame: EventFrame, seq: int | None) -> bytes:
    head = f"id: {seq}\n" if seq is not None else ""
    return f"{head}event: {frame.event}\ndata: {msgspec.json.encode(frame.body).decode()}\n\n".encode()
