"""Build the responses of the export API: statuses, event frames and field errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidError, NotFoundError
from holdfast.server import HIDDEN_ERROR_MESSAGE, Endpoint, EventFrame, get_settings
from holdfast.systems.exports.templates import read_template_paths
from holdfast.systems.field_errors import BadRequestError, FieldError, build_field_errors_response

EXPORT_STATUS_BY_JOB_STATUS = {
    "queued": "pending",
    "running": "processing",
    "succeeded": "completed",
    "partial": "failed",
    "failed": "failed",
    "cancelled": "cancelled",
}
FINAL_EXPORT_STATUSES = frozenset({"completed", "failed", "cancelled"})
# Errors of these types are raised by our own tasks, with messages that are written for users.
START_EXPORT_RESPONSES = {
    400: "A field is not valid",
    404: "The document does not exist",
    429: "Too many exports",
    507: "Storage quota exceeded",
}
PUBLIC_EXPORT_ERROR_TYPES = frozenset({"Reject", "Cancelled"})


class ExportFrameBuilder:
    """Converter from job events to the frames `progress`. `build_final_frames` builds the last ones."""

    merge_progress: Final = False  # every stage is sent, even if the next one follows at once

    def __call__(self, kind: str, body: dict[str, Any], job: dict[str, Any]) -> Sequence[EventFrame]:
        if kind == "snapshot":
            snapshot = body["job"]
            status = EXPORT_STATUS_BY_JOB_STATUS[snapshot["status"]]
            return [_build_progress_frame(snapshot, status, snapshot["progress"]["percent"])]
        if kind == "progress":
            return [_build_progress_frame(job, "processing", body.get("percent"))]
        if kind == "job":
            status = EXPORT_STATUS_BY_JOB_STATUS.get(body.get("status", ""), "pending")
            if status not in FINAL_EXPORT_STATUSES:
                return [_build_progress_frame(job, status, body.get("percent"))]
        return []


def _build_progress_frame(job: dict[str, Any], status: str, percent: float | None) -> EventFrame:
    return EventFrame("progress", {"jobId": job["id"], "status": status, "progress": round(percent or 0)})


def build_final_frames(job: dict[str, Any], result_url: str | None) -> Sequence[EventFrame]:
    """Build the last frames of an export: its progress, and `completed`, `failed` or `cancelled`."""
    status = EXPORT_STATUS_BY_JOB_STATUS[job["status"]]
    completed = status == "completed"
    last_progress = _build_progress_frame(job, status, 100 if completed else job["progress"]["percent"])
    error = None if completed else format_public_error(job["error"])
    return [last_progress, EventFrame(status, {"jobId": job["id"], "resultUrl": result_url, "error": error})]


def format_public_error(error: dict[str, Any] | None) -> str | None:
    """Return the error message for users. Replace an internal message by a general one."""
    if error is None:
        return None
    return str(error["message"]) if error.get("type") in PUBLIC_EXPORT_ERROR_TYPES else HIDDEN_ERROR_MESSAGE


def respond_with_field_errors(endpoint: Endpoint) -> Endpoint:
    """Decorate an endpoint, so that an invalid request gets status 400 with all invalid fields.

    The rest of the API returns 422 with one field.
    """

    @wraps(endpoint)
    async def call_endpoint(request: Request) -> Response:
        try:
            return await endpoint(request)
        except BadRequestError as error:
            return build_field_errors_response(error.errors)
        except InvalidError as error:
            return build_field_errors_response([FieldError(error.field or "body", error.message)])

    return call_endpoint


def list_template_names(request: Request) -> list[str]:
    """List the names of the built-in templates and of the templates in `template_folder`."""
    return list(read_template_paths(get_settings(request).template_folder))


def parse_path_id(request: Request, noun: str) -> UUID:
    """Return the UUID in the path. Raise `NotFoundError` (404) if the text is not a UUID."""
    text = request.path_params["id"]
    try:
        return UUID(text)
    except ValueError:
        raise NotFoundError(f"{noun.capitalize()} {text!r} does not exist.") from None
