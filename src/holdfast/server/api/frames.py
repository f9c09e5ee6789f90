"""Frames of an event stream: stored events in the words of the format, version 1, and how frames are
written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.model import ENDED, Json
from holdfast.server.api.views import public_error

VERSION = 1


@dataclass(frozen=True)
class Frame:
    event: str
    body: Json


Encode: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any]], Sequence[Frame]]
"""(kind, body, job) to frames. Kinds: `snapshot`, `end`, and those of the stored events."""


def encode(kind: str, body: dict[str, Json], job: dict[str, Json]) -> Sequence[Frame]:
    """The format of this API; systems with another vocabulary bring their own function."""
    if kind == "snapshot":
        return [Frame("snapshot", snapshot(body["job"], body["artifacts"], resync=body["resync"]))]
    if kind == "end":
        return [Frame("end", end(body["job"], body["artifacts"]))]
    if kind == "tasks":
        named = [Frame("task", {"name": name, "state": state}) for name, state in body["tasks"].items()]
        return [*named, Frame("progress", {"percent": body.get("percent"), "task": None})]
    if kind == "job":
        # The end has a frame of its own.
        changed = {"state": body.get("status"), "percent": body.get("percent")}
        return [] if body.get("status") in ENDED else [Frame("state", changed)]
    if kind == "progress":
        return [Frame("progress", {**body, "eta_s": eta(job, body.get("percent"))})]
    return [Frame(kind, body)]


def encode_batch(kind: str, body: dict[str, Json], batch: dict[str, Json]) -> Sequence[Frame]:
    """The same for a batch: `snapshot`, `progress` and `end`, each with all there is to know of it."""
    if kind == "snapshot":
        shown = {"v": VERSION, "batch": batch["id"], "name": batch["name"], **_counts(batch)}
        return [Frame("snapshot", {**shown, "resync": True} if body["resync"] else shown)]
    if kind == "end":
        return [Frame("end", {"batch": batch["id"], **_counts(batch), "callback_job": batch["callback_job"]})]
    return [Frame("progress", _counts(body))] if kind == "progress" else []  # the end has its own


def _counts(batch: dict[str, Json]) -> dict[str, Json]:
    total, ended = batch["total"], batch["ended"]
    return {
        "state": batch["status"],
        "percent": round(100 * ended / total, 1) if total else None,
        "total": total,
        "ended": ended,
        "failed": batch["failed"],
        "cancelled": batch.get("cancelled", 0),
    }


def snapshot(job: dict[str, Json], files: list[Json], *, resync: bool = False) -> dict[str, Json]:
    """Everything a page needs to draw a job from nothing."""
    progress = job["progress"]
    shown = {
        "v": VERSION,
        "job": job["id"],
        "type": job["type"],
        "state": job["status"],
        "attempt": max((task["attempt"] for task in job["tasks"]), default=0),
        "percent": progress["percent"],
        "phase": progress["phase"],
        "message": progress["message"],
        "done": job["counts"]["total"] - _unfinished(job),
        "total": job["counts"]["total"],
        "eta_s": eta(job, progress["percent"]),
        "created_at": job["created_at"],
        "started_at": job["started_at"],
        "tasks": [_task(task) for task in job["tasks"]],
        "artifacts": files,
        "error": job["error"],
    }
    return {**shown, "resync": True} if resync else shown


def end(job: dict[str, Json], files: list[Json]) -> dict[str, Json]:
    return {
        "state": job["status"],
        "percent": job["progress"]["percent"],
        "result": job["output"],
        "error": job["error"],
        "artifacts": len(files),
        "files": files,
        "run_s": _seconds_between(job["started_at"], job["finished_at"]),
        "next": None,
    }


def _task(task: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": task["id"],
        "name": task["name"],
        "state": task["status"],
        "attempt": task["attempt"],
        "percent": task["progress"]["percent"],
        "error": task["error"],
    }


def _unfinished(job: dict[str, Json]) -> int:
    counts = job["counts"]
    return int(
        counts["total"] - sum(counts[name] for name in ("succeeded", "failed", "cancelled", "skipped"))
    )


def eta(job: dict[str, Json], percent: float | None) -> int | None:
    """Seconds to go if it goes on as it did; None while too little is known."""
    started = job.get("started_at")
    if started is None or percent is None or not 1 <= percent < 100:
        return None
    passed = (datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds()
    return max(0, round(passed * (100 - percent) / percent))


def _seconds_between(first: str | None, last: str | None) -> float | None:
    if first is None or last is None:
        return None
    return round((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds(), 3)


def for_users(frame: Frame) -> Frame:
    """Without what is not meant for users: errors keep their public part only."""
    given: object = frame.body
    body = cast("dict[str, Json]", given) if isinstance(given, dict) else {}
    if body.get("error") is not None:
        return Frame(frame.event, {**body, "error": public_error(body["error"])})
    return frame


def numbered(frames: Sequence[Frame], seq: int) -> list[bytes]:
    """The frames of one stored event: the last carries its number, so a cut in between repeats them all."""
    return [written(frame, seq if place == len(frames) else None) for place, frame in enumerate(frames, 1)]


def written(frame: Frame, number: int | None = None) -> bytes:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {frame.event}\ndata: {msgspec.json.encode(frame.body).decode()}\n\n".encode()
