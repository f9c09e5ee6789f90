"""The log lines of a job: filter by level, task and attempt, search, and download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from holdfast.engine import logs
from holdfast.server.dashboard.job_redaction import create_job_redactor
from holdfast.server.dashboard.pages.job import Row, get_job_or_404, load_log_lines
from holdfast.server.dashboard.redaction import PayloadRedactor
from holdfast.server.dashboard.registry import register_download
from holdfast.server.dashboard.site import PageRequest

MAX_DOWNLOADED_LOG_LINES = 100_000
LOG_LINES_PER_QUERY = 5000


@register_download("/jobs/{id}/logs", "jobs.view")
async def download_logs(request: PageRequest) -> Response:
    detail = await get_job_or_404(request)
    redactor = await create_job_redactor(request, detail)
    lines = await _read_all_log_lines(request, detail["tasks"] or (), redactor)
    text = "".join(format_log_line(line) for line in lines)
    name = f"{request.parse_id()}.log"
    return Response(
        text,
        media_type="text/plain; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


async def _read_all_log_lines(
    request: PageRequest, tasks: Sequence[Row], redactor: PayloadRedactor
) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    after, job_id = 0, UUID(str(request.parse_id()))
    while len(lines) < MAX_DOWNLOADED_LOG_LINES:
        rows = await logs.read_logs(request.connection, job_id, after=after, limit=LOG_LINES_PER_QUERY)
        lines += load_log_lines(rows, tasks, redactor)
        if len(rows) < LOG_LINES_PER_QUERY:
            break
        after = rows[-1].n
    return lines


def format_log_line(line: Row) -> str:
    """Format a log line for a text file: time, level, task, attempt, message and fields."""
    fields = f" {msgspec.json.encode(line['fields']).decode()}" if line["fields"] else ""
    message = str(line["message"]).replace("\n", "\n  ")
    at = line["at"].isoformat(timespec="milliseconds")
    return f"{at} {line['level'].upper():<7} {line['task']}#{line['attempt']} {message}{fields}\n"
