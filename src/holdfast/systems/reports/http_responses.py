"""Build the responses of the report API: status, progress and event frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.server import EventFrame
from holdfast.systems.reports.chapters import CHAPTERS, compute_succeeded_percent, get_report_phase
from holdfast.systems.reports.stored_reports import StoredReport

REPORT_STATUS_BY_JOB_STATUS = {
    "queued": "queued",
    "running": "processing",
    "succeeded": "complete",
    "partial": "failed",
    "failed": "failed",
    "cancelled": "cancelled",
}
ARTIFACT_TYPE_BY_FILE_KIND = {"audio": "audio_mp3"}
MAX_UNFINISHED_PERCENT = 99.0
FINAL_MESSAGES = {"complete": "Complete", "failed": "Failed", "cancelled": "Cancelled"}
_CHAPTER_FILE_TASKS = ("pdf", "audio")


def build_report_progress(
    status: str, percent: float | None, message: str | None, succeeded_tasks: set[str]
) -> dict[str, Any]:
    """Build the progress of a report: percent, phase, message and number of complete documents."""
    if status in ("failed", "cancelled"):
        # The engine counts the tasks that have ended. Users want to know what they have.
        percent = compute_succeeded_percent(succeeded_tasks)
    shown = 100.0 if status == "complete" else min(round(percent or 0, 1), MAX_UNFINISHED_PERCENT)
    return {
        "percent": int(shown) if shown == int(shown) else shown,
        "phase": get_report_phase(status, shown),
        "docsComplete": count_complete_documents(succeeded_tasks),
        "docsTotal": len(CHAPTERS),
        "message": FINAL_MESSAGES.get(status, message),
    }


def count_complete_documents(succeeded_tasks: set[str]) -> int:
    """Count the chapters of a report whose PDF and audio tasks have both succeeded."""
    return sum(
        all(f"{part} {chapter.slug}" in succeeded_tasks for part in _CHAPTER_FILE_TASKS)
        for chapter in CHAPTERS
    )


def get_succeeded_task_names(job: dict[str, Any]) -> set[str]:
    """Return the names of the succeeded tasks of a job."""
    return {task["name"] for task in job.get("tasks") or () if task["status"] == "succeeded"}


def build_report_response(job: dict[str, Any]) -> dict[str, Any]:
    """Convert a job to the response format of the report API, without artifacts."""
    status, progress = REPORT_STATUS_BY_JOB_STATUS[job["status"]], job["progress"]
    error = job.get("error")
    return {
        "id": job["id"],
        "type": job["type"],
        "status": status,
        "progress": build_report_progress(
            status, progress["percent"], progress["message"], get_succeeded_task_names(job)
        ),
        "error": error["message"] if error and status == "failed" else None,
        "createdAt": job["created_at"],
    }


def build_stored_report_response(report: StoredReport) -> dict[str, Any]:
    """Convert a row of the view `jobs` to the response format of the report API, without artifacts."""
    percent = report.progress["percent"]
    return {
        "id": str(report.id),
        "type": report.type,
        "status": report.status,
        "progress": {**report.progress, "percent": int(percent) if percent == int(percent) else percent},
        "error": report.error,
        "createdAt": report.created_at,
    }


class ReportFrameBuilder:
    """Converter from job events to the frames `progress`, `complete`, `failed` and `cancelled`."""

    def __init__(self) -> None:
        self._succeeded_tasks: set[str] = set()
        self._message: str | None = None
        self._percent = 0.0

    def __call__(self, kind: str, body: dict[str, Any], job: dict[str, Any]) -> Sequence[EventFrame]:
        if kind == "end":
            report = build_report_response(body["job"])
            return [EventFrame(report["status"], report)]
        if kind == "snapshot":
            self._succeeded_tasks |= get_succeeded_task_names(body["job"])
            report = build_report_response(body["job"])
            self._message, self._percent = report["progress"]["message"], report["progress"]["percent"]
            return [EventFrame("progress", report)]
        if kind not in ("progress", "tasks"):
            return []
        changed_tasks: dict[str, str] = body.get("tasks") or {}
        self._succeeded_tasks |= {name for name, state in changed_tasks.items() if state == "succeeded"}
        self._message = body.get("message") or self._message
        self._percent = max(self._percent, body.get("percent") or 0)
        status = "processing"
        progress = build_report_progress(status, self._percent, self._message, self._succeeded_tasks)
        return [EventFrame("progress", {"id": job["id"], "status": status, "progress": progress})]
