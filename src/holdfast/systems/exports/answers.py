"""The contract's words: statuses, frames of the streams, and refusals with their fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidError, NotFoundError
from holdfast.server.api import services_of
from holdfast.server.api.frames import Frame
from holdfast.server.api.views import KEPT_BACK
from holdfast.systems.exports.options import BadRequestError, FieldError
from holdfast.systems.exports.templates import templates_in

Endpoint = Callable[[Request], Awaitable[Response]]
STATUS = {
    "queued": "pending",
    "running": "processing",
    "succeeded": "completed",
    "partial": "failed",
    "failed": "failed",
    "cancelled": "cancelled",
}
FOR_USERS = frozenset({"Reject", "Cancelled"})
ENDED = frozenset({"completed", "failed", "cancelled"})


def download_path(history_id: object) -> str:
    return f"/api/v1/export/download/{history_id}"


class Stages:
    """The stored events of an export as `progress`, then `completed`, `failed` or `cancelled`."""

    each: Final = True  # a stage is told even if the next one follows at once

    def __call__(self, kind: str, body: dict[str, Any], job: dict[str, Any]) -> Sequence[Frame]:
        if kind == "end":
            return _end(body["job"])
        if kind == "snapshot":
            shown = body["job"]
            return [_progress(shown, STATUS[shown["status"]], shown["progress"]["percent"])]
        if kind == "progress":
            return [_progress(job, "processing", body.get("percent"))]
        if kind == "job" and STATUS.get(body.get("status", "")) not in ENDED:
            return [_progress(job, STATUS.get(body.get("status", ""), "pending"), body.get("percent"))]
        return []


def _progress(job: dict[str, Any], status: str, percent: float | None) -> Frame:
    return Frame("progress", {"jobId": job["id"], "status": status, "progress": round(percent or 0)})


def _end(job: dict[str, Any]) -> Sequence[Frame]:
    status = STATUS[job["status"]]
    last = _progress(job, status, 100 if status == "completed" else job["progress"]["percent"])
    error = told_error(job["error"]) if status != "completed" else None
    result = download_path(job["id"]) if status == "completed" else None
    return [last, Frame(status, {"jobId": job["id"], "resultUrl": result, "error": error})]


def told_error(error: dict[str, Any] | None) -> str | None:
    """What our tasks meant for users; of anything else they learn only that it happened."""
    if error is None:
        return None
    return str(error["message"]) if error.get("type") in FOR_USERS else KEPT_BACK


def fielded(endpoint: Endpoint) -> Endpoint:
    """Answers 400 with the fields, where the rest of the API answers 422 with one of them."""

    @wraps(endpoint)
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except BadRequestError as problem:
            return refusal(problem.errors)
        except InvalidError as problem:
            return refusal([FieldError(problem.field or "body", problem.message)])

    return answered


def refusal(errors: list[FieldError]) -> Response:
    body = {"type": "about:blank", "title": "The request is not valid", "status": 400, "errors": errors}
    return Response(msgspec.json.encode(body), 400, media_type="application/problem+json")


def templates_of(request: Request) -> list[str]:
    return list(templates_in(services_of(request).settings.template_folder))


def id_in(request: Request, what: str) -> UUID:
    """The id in the path. What is no id is the id of nothing."""
    try:
        return UUID(request.path_params["id"])
    except ValueError:
        raise NotFoundError(f"There is no such {what}.") from None
