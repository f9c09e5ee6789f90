"""Jobs: find them, see them, act on the ones that were found."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from holdfast.engine import insight, operate, search
from holdfast.errors import InvalidError
from holdfast.search import FIELDS, STATES, Query, parse, with_term
from holdfast.server.dashboard.redaction import Redactor, refuse_prying
from holdfast.server.dashboard.registry import deed, download, screen
from holdfast.server.dashboard.shapes import mapped
from holdfast.server.dashboard.site import Deed, Page, View, as_uuid
from holdfast.server.dashboard.words import between

LIMIT = 50
EXPORTED = 5000
SIDE = ("running", "ready", "scheduled", "retrying", "failed", "succeeded", "cancelled", "partial")


def query_of(view: View, text: str) -> Query:
    query = parse(text)
    refuse_prying(query, view.visitor)
    return query


@screen("/jobs", "jobs.view")
async def jobs(view: View) -> Page:
    text = view.query.get("q", "").strip()
    wrong: str | None = None
    page = search.Page(rows=[])
    try:
        query = query_of(view, text)
        page = await search.search_jobs(
            view.connection,
            query,
            before=view.before,
            limit=LIMIT,
            owner=view.tenant,
            counted=view.before is None,
        )
    except InvalidError as problem:
        wrong = str(problem)
    return Page(
        "jobs.html",
        "Jobs",
        {
            "q": text,
            "wrong": wrong,
            "found": page,
            "rows": [shown(view, row) for row in page.rows],
            "side": await _side(view, text if wrong is None else ""),
            "views": await insight.list_views(view.connection, view.visitor.name),
            "hints": await _hints(view),
        },
    )


def shown(view: View, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as this visitor may see it."""
    redactor = view.redactor()
    payload = redactor.payload(row.get("params"))
    error = mapped(row.get("error"))
    now = view.now
    return {
        **dict.fromkeys(("attempt", "failures", "worker", "queue", "batch", "limit_key"), None),
        **row,
        "params": payload,
        "error": {"type": error.get("type"), "message": redactor.text(error.get("message"))}
        if error
        else None,
        "progress": _progress(row["progress"], redactor),
        "wait_s": between(row["due_at"], row["started_at"] or now) if row["state"] != "scheduled" else None,
        "run_s": between(row["started_at"], row["finished_at"] or now) if row["started_at"] else None,
    }


def _progress(progress: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    return {**progress, "message": redactor.text(progress.get("message"))}


async def _side(view: View, text: str) -> list[dict[str, Any]]:
    """States with what the database can count at once; the others are links."""
    counts: dict[str, int | None] = {}
    stopped = False
    if view.tenant is None:
        found = await operate.task_queues(view.connection)
        troubles = await insight.troubles(view.connection, view.now - timedelta(hours=24))
        stopped = not all(q["ready_exact"] for q in found)
        counts = {
            "ready": sum(q["ready"] for q in found),
            "running": sum(q["running"] for q in found),
            "scheduled": troubles["scheduled"],
            "retrying": troubles["retrying"],
            "failed": troubles["failed"],
        }
    asked = parse(text).of("state")
    return [
        {
            "state": state,
            "count": counts.get(state),
            "exact": state != "ready" or not stopped,
            "on": state in asked,
            "q": with_term(text, "state", None if asked == (state,) else state),
        }
        for state in SIDE
    ]


async def _hints(view: View) -> list[str]:
    """What the search box offers: fields first, then values that there are."""
    found = await operate.task_queues(view.connection)
    types = {kind for queue in found for kind in queue["types"] or ()}
    return [
        *(f"{name}:" for name in FIELDS),
        *(f"state:{state}" for state in STATES),
        *(f"queue:{queue['queue']}" for queue in found[:50]),
        *(f"task:{kind}" for kind in sorted(types)[:100]),
    ]


@download("/jobs/export", "jobs.view")
async def exported(view: View) -> Response:
    kind = view.query.get("format", "jsonl")
    if kind not in {"csv", "jsonl"}:
        raise InvalidError("Choose a format: csv or jsonl.", field="format")
    lines = [line async for line in _lines(view, kind)]
    media = "text/csv" if kind == "csv" else "application/x-ndjson"
    return Response(
        "".join(lines),
        media_type=media,
        headers={"content-disposition": f'attachment; filename="jobs.{kind}"'},
    )


async def _lines(view: View, kind: str) -> AsyncGenerator[str]:
    query = query_of(view, view.query.get("q", ""))
    columns = (
        "id",
        "state",
        "queue",
        "type",
        "owner",
        "created_at",
        "started_at",
        "finished_at",
        "error",
        "params",
    )
    if kind == "csv":
        yield _csv(columns)
    before: UUID | None = None
    for _ in range(EXPORTED // 500):
        page = await search.search_jobs(view.connection, query, before=before, limit=500, owner=view.tenant)
        for row in page.rows:
            one = shown(view, row)
            one["error"] = f"{one['error']['type']}: {one['error']['message']}" if one["error"] else None
            kept = {name: one.get(name) for name in columns}
            yield _csv(kept.values()) if kind == "csv" else msgspec.json.encode(kept).decode() + "\n"
        before = page.next
        if before is None:
            return


def _csv(values: Any) -> str:
    """One line. What a spreadsheet would run as a formula is made text."""
    out = io.StringIO()
    texts = [
        v if isinstance(v, str) else "" if v is None else msgspec.json.encode(v).decode() for v in values
    ]
    csv.writer(out).writerow([f"'{t}" if t[:1] in {"=", "+", "-", "@", "\t", "\r"} else t for t in texts])
    return out.getvalue()


@deed("/views/save", "view.save")
async def save_view(asked: Deed) -> tuple[str, str]:
    text = asked.text("q", most=4000)
    query_of(asked.view, text)
    name = asked.needed("name")
    await insight.save_view(
        asked.connection, name, "jobs", text, by=asked.by, shared=asked.text("shared") == "yes"
    )
    await asked.audit("view.save", name, search=text)
    return asked.view.url("/jobs", q=text)[len(asked.view.base) :], f"Saved as “{name}”."


@deed("/views/delete", "view.save")
async def delete_view(asked: Deed) -> tuple[str, str]:
    done = await insight.delete_view(asked.connection, as_uuid(asked.text("id")), asked.by)
    if done:
        await asked.audit("view.delete", asked.text("id"))
    return "/jobs", "Deleted." if done else "That view is not yours."
