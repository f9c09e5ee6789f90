"""Live progress of a job as server-sent events (docs/guide/http-api.md has the format, version 1)."""

from __future__ import annotations

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response


async def stream(request: Request, job_id: UUID) -> Response:
    raise NotImplementedError
