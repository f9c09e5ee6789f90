"""The job list: search, saved views and export."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from holdfast.engine import overview, queues, saved_views, search, task_types
from holdfast.errors import DatabaseUnavailableError, InvalidError
from holdfast.formatting import format_error, seconds_between
from holdfast.redaction import find_secret_fields
from holdfast.search import SEARCH_FIELDS, SEARCH_STATES, SearchQuery, parse_search, replace_search_term
from holdfast.server.dashboard.flash import redirect_with_message
from holdfast.server.dashboard.job_columns import (
    COLUMNS_COOKIE,
    JOB_COLUMNS,
    JobColumn,
    format_chosen_columns,
    parse_chosen_columns,
)
from holdfast.server.dashboard.job_redaction import create_row_redactors
from holdfast.server.dashboard.json_values import object_or_empty
from holdfast.server.dashboard.redaction import PayloadRedactor, restrict_search
from holdfast.server.dashboard.registry import register_action, register_download, register_page
from holdfast.server.dashboard.shard_pages import read_all_shards
from holdfast.server.dashboard.site import (
    PREFERENCE_COOKIE_LIFETIME_S,
    ActionRequest,
    DashboardPage,
    PageRequest,
    build_dashboard_url,
    parse_uuid_or_404,
)

JOBS_PER_PAGE = 100
MAX_EXPORTED_JOBS = 5000
EXPORT_JOBS_PER_QUERY = 500
SHARD_EXPORT_TIMEOUT_S = 20.0
MAX_SUGGESTED_QUEUES = 50
MAX_SUGGESTED_TASKS = 100
JOB_FILTER_STATES = (
    "running",
    "ready",
    "scheduled",
    "retrying",
    "failed",
    "succeeded",
    "cancelled",
    "partial",
)
JOB_EXPORT_COLUMNS = (
    *("id", "state", "queue", "type", "owner", "created_at", "started_at", "finished_at", "error", "params"),
)


async def parse_permitted_search(request: PageRequest, text: str) -> SearchQuery:
    """Parse a search query. Raise `InvalidError` if it searches values that the user may not read."""
    query = parse_search(text)
    secret_fields: frozenset[str] = frozenset()
    if any(term.path for term in query.terms) and not request.can("payload.secret"):
        known_types = await task_types.list_task_types(request.connection)
        secret_fields = secret_fields.union(*(find_secret_fields(kind.get("schema")) for kind in known_types))
    return restrict_search(query, request.user, secret_fields)


@register_page("/jobs", "jobs.view", reads_replica=True, all_shards="merged")
async def list_jobs(request: PageRequest) -> DashboardPage:
    text = request.query.get("q", "").strip()
    listed, (task_queues, counts) = await request.read_together(
        lambda own: _try_search(own, text), _load_state_counts
    )
    return DashboardPage(
        "jobs.html",
        "Jobs",
        {
            "q": text,
            "error": listed.error,
            "result": listed.result,
            "jobs": listed.rows,
            "missing_shards": listed.missing_shards,
            "is_merged": bool(request.site.shard_sites),
            "state_filters": _build_state_filters(text if listed.error is None else "", counts),
            "saved_views": await saved_views.list_saved_views(request.connection, request.user.name),
            "suggestions": _list_search_suggestions(task_queues),
            "columns": [
                *(["shard"] if request.site.shard_sites else []),
                *(
                    name
                    for name in parse_chosen_columns(request.cookies.get(COLUMNS_COOKIE))
                    if name != "payload" or request.can("payload.view")
                ),
            ],
            "column_choices": JOB_COLUMNS,
            "column_labels": {**JOB_COLUMNS, "shard": JobColumn("Shard")}
            if request.site.shard_sites
            else JOB_COLUMNS,
        },
    )


@dataclass(frozen=True)
class JobListing:
    """The jobs of a page, or the error in the search."""

    result: search.JobSearchPage
    rows: list[dict[str, Any]]
    missing_shards: list[int] = field(default_factory=list[int])
    error: str | None = None


async def _try_search(request: PageRequest, text: str) -> JobListing:
    try:
        if request.site.shard_sites:
            return JobListing(*await _search_all_shards(request, text))
        return JobListing(*await _search_jobs(request, text))
    except InvalidError as invalid:
        return JobListing(search.JobSearchPage(rows=[]), [], error=str(invalid))


async def _search_jobs(request: PageRequest, text: str) -> tuple[search.JobSearchPage, list[dict[str, Any]]]:
    """Return a page of jobs of one database, and its rows as the user may see them."""
    result = await search.search_jobs(
        request.connection,
        await parse_permitted_search(request, text),
        before=request.before_id,
        limit=JOBS_PER_PAGE,
        owner=request.tenant,
        with_count=request.before_id is None,
    )
    return result, await redact_job_rows(request, result.rows)


async def _search_all_shards(
    request: PageRequest, text: str
) -> tuple[search.JobSearchPage, list[dict[str, Any]], list[int]]:
    """Return a page of jobs of all shards, newest first, and the shards that did not answer.

    A shard with a next page may have more jobs older than its `next`, so the page ends at the newest `next`.
    """
    parse_search(text)  # an error of the search is not an error of a shard
    pages, missing = await read_all_shards(request, lambda own: _search_jobs(own, text))
    rows = [{**row, "shard": str(number)} for number, (_, own_rows) in pages.items() for row in own_rows]
    rows.sort(key=lambda row: str(row["id"]), reverse=True)
    results = [result for result, _ in pages.values()]
    end = max((result.next for result in results if result.next is not None), default=None)
    if end is not None:
        rows = [row for row in rows if str(row["id"]) >= str(end)]
    if len(rows) > JOBS_PER_PAGE:
        end = UUID(str(rows[JOBS_PER_PAGE - 1]["id"]))
    counts = [result.count for result in results if result.count is not None]
    merged = search.JobSearchPage(
        rows=[],
        next=end,
        truncated=any(result.truncated for result in results),
        scan=sum(result.scan for result in results),
        count=sum(counts) if counts else None,
        exact=not missing and all(result.exact for result in results),
        at_least=bool(missing) or any(result.at_least for result in results),
    )
    return merged, rows[:JOBS_PER_PAGE], missing


async def redact_job_rows(request: PageRequest, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return jobs without values that the user may not see, with wait and run time in seconds."""
    redactors = await create_row_redactors(request, rows)
    return [redact_job_row(row, redactors[str(row["id"])], request.now) for row in rows]


def redact_job_row(row: Mapping[str, Any], redactor: PayloadRedactor, now: datetime) -> dict[str, Any]:
    """Return a job without values that the user may not see, with wait and run time in seconds."""
    error = object_or_empty(row.get("error"))
    due_at, started_at, finished_at = row["due_at"], row["started_at"], row["finished_at"]
    is_scheduled = row["state"] == "scheduled"
    return {
        **dict.fromkeys(("attempt", "failures", "worker", "queue", "batch", "limit_key"), None),
        **row,
        "params": redactor.redact_payload(row.get("params")),
        "error": {"type": error.get("type"), "message": redactor.redact_text(error.get("message"))}
        if error
        else None,
        "progress": {**row["progress"], **redact_progress(row["progress"], redactor)},
        "wait_s": None if is_scheduled else seconds_between(due_at, started_at or now),
        "run_s": seconds_between(started_at, finished_at or now) if started_at else None,
    }


def redact_progress(progress: Mapping[str, Any], redactor: PayloadRedactor) -> dict[str, str]:
    """Return the texts of a progress, phase and message, without values that the user may not see."""
    return {name: redactor.redact_text(progress.get(name)) for name in ("phase", "message")}


async def _load_state_counts(
    request: PageRequest,
) -> tuple[list[dict[str, Any]], dict[str, tuple[int, bool]]]:
    """Return all queues, and counts of the states that are fast to count, each with whether it is exact."""
    task_queues = await queues.list_task_queues(request.connection)
    if request.tenant is not None or request.site.shard_sites:
        return task_queues, {}
    totals = await overview.count_problems(request.connection, request.now - timedelta(hours=24))
    return task_queues, {
        **{state: queues.sum_task_counts(task_queues, state) for state in ("ready", "running")},
        **{state: (totals[state], totals[f"{state}_exact"]) for state in ("scheduled", "retrying", "failed")},
    }


def _build_state_filters(text: str, counts: Mapping[str, tuple[int, bool]]) -> list[dict[str, Any]]:
    """Build one filter link per job state."""
    chosen = parse_search(text).get_values("state")
    return [
        {
            "state": state,
            "count": counts.get(state, (None, True))[0],
            "exact": counts.get(state, (None, True))[1],
            "is_chosen": state in chosen,
            "q": replace_search_term(text, "state", None if chosen == (state,) else state),
        }
        for state in JOB_FILTER_STATES
    ]


def _list_search_suggestions(task_queues: Sequence[dict[str, Any]]) -> list[str]:
    """Return suggestions for the search box: search fields, then existing queues and tasks."""
    task_types = {task_type for queue in task_queues for task_type in queue["types"] or ()}
    return [
        *(f"{name}:" for name in SEARCH_FIELDS),
        *(f"state:{state}" for state in SEARCH_STATES),
        *(f"queue:{queue['queue']}" for queue in task_queues[:MAX_SUGGESTED_QUEUES]),
        *(f"task:{task_type}" for task_type in sorted(task_types)[:MAX_SUGGESTED_TASKS]),
    ]


@register_download("/jobs/export", "jobs.view")
async def export_jobs(request: PageRequest) -> Response:
    file_format = request.query.get("format", "jsonl")
    if file_format not in {"csv", "jsonl"}:
        raise InvalidError("Choose a format: csv or jsonl.", field="format")
    if request.site.shard_sites:
        exports, missing = await read_all_shards(
            request,
            lambda own: _export_lines(own, file_format),
            statement_timeout_s=SHARD_EXPORT_TIMEOUT_S,
        )
        if missing:
            raise DatabaseUnavailableError(f"Shard {', '.join(map(str, missing))} does not answer.")
        lines = _join_exports(list(exports.values()), file_format)
    else:
        lines = await _export_lines(request, file_format)
    return Response(
        "".join(lines),
        media_type="text/csv" if file_format == "csv" else "application/x-ndjson",
        headers={"content-disposition": f'attachment; filename="jobs.{file_format}"'},
    )


async def _export_lines(request: PageRequest, file_format: str) -> list[str]:
    return [line async for line in _iterate_export_lines(request, file_format)]


def _join_exports(exports: Sequence[list[str]], file_format: str) -> list[str]:
    """Join the exports of several shards, with one header."""
    header = 1 if file_format == "csv" else 0
    return exports[0][:header] + [line for lines in exports for line in lines[header:]]


async def _iterate_export_lines(request: PageRequest, file_format: str) -> AsyncGenerator[str]:
    query = await parse_permitted_search(request, request.query.get("q", ""))
    if file_format == "csv":
        yield _format_csv_line(JOB_EXPORT_COLUMNS)
    before: UUID | None = None
    for _ in range(MAX_EXPORTED_JOBS // EXPORT_JOBS_PER_QUERY):
        result = await search.search_jobs(
            request.connection, query, before=before, limit=EXPORT_JOBS_PER_QUERY, owner=request.tenant
        )
        for job in await redact_job_rows(request, result.rows):
            job["error"] = format_error(job) or None
            exported = {name: job.get(name) for name in JOB_EXPORT_COLUMNS}
            if file_format == "csv":
                yield _format_csv_line(exported.values())
            else:
                yield msgspec.json.encode(exported).decode() + "\n"
        before = result.next
        if before is None:
            return


def _format_csv_line(values: Iterable[Any]) -> str:
    """Format one CSV line. Values that a spreadsheet would run as formulas are marked as text."""
    output = io.StringIO()
    texts = [
        value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
        for value in values
    ]
    formula_starts = {"=", "+", "-", "@", "\t", "\r"}
    csv.writer(output).writerow([f"'{text}" if text[:1] in formula_starts else text for text in texts])
    return output.getvalue()


@register_action("/jobs/columns", "settings.edit")
async def choose_columns(action: ActionRequest) -> Response:
    """Save the columns of the job list in a cookie of this browser. None means the default columns."""
    names = [name for name in action.form.getlist("column") if isinstance(name, str)]
    path = build_dashboard_url("/jobs", q=action.get_text("q", max_chars=4000))
    base = action.request.base
    response = redirect_with_message(action.request.site.signer, base, path, "")
    response.set_cookie(
        COLUMNS_COOKIE,
        format_chosen_columns(names),
        max_age=PREFERENCE_COOKIE_LIFETIME_S,
        samesite="lax",
        path=base or "/",
    )
    return response


@register_action("/views/save", "view.save")
async def save_view(action: ActionRequest) -> tuple[str, str]:
    text = action.get_text("q", max_chars=4000)
    await parse_permitted_search(action.request, text)
    name = action.get_required_text("name")
    shared = action.get_text("shared") == "yes"
    await saved_views.put_saved_view(
        action.connection, name, "jobs", text, by=action.actor_name, shared=shared
    )
    await action.record_audit("view.save", name, search=text)
    return build_dashboard_url("/jobs", q=text), f"View “{name}” saved."


@register_action("/views/delete", "view.save")
async def delete_view(action: ActionRequest) -> tuple[str, str]:
    view_id = parse_uuid_or_404(action.get_text("id"))
    deleted = await saved_views.delete_saved_view(action.connection, view_id, action.actor_name)
    if deleted:
        await action.record_audit("view.delete", action.get_text("id"))
    return "/jobs", "View deleted." if deleted else "You can delete only your own views."
