"""A report in the contract's words: status, progress with documents, files with links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.server.api.frames import Frame
from holdfast.systems.reports.chapters import CHAPTERS, phase_of

STATUS = {
    "queued": "queued",
    "running": "processing",
    "succeeded": "complete",
    "partial": "failed",
    "failed": "failed",
    "cancelled": "cancelled",
}
TYPES = {"audio": "audio_mp3"}
_HALVES = ("pdf", "audio")


def progress_of(status: str, percent: float | None, message: str | None, done: set[str]) -> dict[str, Any]:
    shown = 100.0 if status == "complete" else min(round(percent or 0, 1), 99.0)
    return {
        "percent": int(shown) if shown == int(shown) else shown,
        "phase": phase_of(status, shown),
        "docsComplete": complete(done),
        "docsTotal": len(CHAPTERS),
        "message": message,
    }


def complete(done: set[str]) -> int:
    """Documents of which both the PDF and the recording are there."""
    return sum(all(f"{half} {chapter.slug}" in done for half in _HALVES) for chapter in CHAPTERS)


def succeeded(job: dict[str, Any]) -> set[str]:
    return {task["name"] for task in job.get("tasks") or () if task["status"] == "succeeded"}


def shown(job: dict[str, Any]) -> dict[str, Any]:
    """A job as the engine tells it, in the words of the contract; without its files."""
    status, progress = STATUS[job["status"]], job["progress"]
    error = job.get("error")
    return {
        "id": job["id"],
        "type": job["type"],
        "status": status,
        "progress": progress_of(status, progress["percent"], progress["message"], succeeded(job)),
        "error": error["message"] if error and status == "failed" else None,
        "createdAt": job["created_at"],
    }


class Telling:
    """Stored events of one stream as `progress`, then `complete`, `failed` or `cancelled`."""

    def __init__(self) -> None:
        self._done: set[str] = set()
        self._message: str | None = None
        self._percent = 0.0

    def __call__(self, kind: str, body: dict[str, Any], job: dict[str, Any]) -> Sequence[Frame]:
        if kind == "end":
            told = shown(body["job"])
            return [Frame(told["status"], told)]
        if kind == "snapshot":
            self._done |= succeeded(body["job"])
            told = shown(body["job"])
            self._message, self._percent = told["progress"]["message"], told["progress"]["percent"]
            return [Frame("progress", told)]
        if kind not in ("progress", "tasks"):
            return []
        changed: dict[str, str] = body.get("tasks") or {}
        self._done |= {name for name, state in changed.items() if state == "succeeded"}
        self._message = body.get("message") or self._message
        self._percent = max(self._percent, body.get("percent") or 0)
        status = "processing"
        progress = progress_of(status, self._percent, self._message, self._done)
        return [Frame("progress", {"id": job["id"], "status": status, "progress": progress})]
