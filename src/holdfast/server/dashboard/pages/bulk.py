"""Batches and bulk actions: watched, paused, stopped, undone."""

from __future__ import annotations

from typing import cast
from uuid import UUID

from starlette.exceptions import HTTPException

from holdfast.engine import insight, jobs, search
from holdfast.engine.search import Control, Ramp, Verb
from holdfast.errors import InvalidError
from holdfast.server.dashboard.pages.jobs import query_of
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View, as_uuid
from holdfast.server.dashboard.words import between, plural

AT_ONCE = 1000  # members of a batch that one press of the button cancels, in one transaction


def _verb(text: str) -> Verb:
    if text == "retry":
        return "retry"
    if text == "cancel":
        return "cancel"
    raise InvalidError("Choose retry or cancel.", field="verb")


@screen("/bulk", "batch.view")
async def bulks(view: View) -> Page:
    batches = await insight.list_batches(view.connection, owner=view.tenant, before=None)
    found = await search.list_bulk(view.connection) if view.may("bulk.run") else []
    actions = [one for one in found if view.owns(one.owner)]
    return Page("bulks.html", "Batches and bulk", {"batches": batches, "actions": actions})


def _chosen(view: View) -> tuple[Verb, str]:
    """What a form or link asks for: ticked jobs, or all that fit a search."""
    verb, ids = _verb(view.query.get("verb", "")), view.query.getlist("id")
    text = view.query.get("q", "").strip()
    if ids and view.query.get("all") != "yes":
        text = "job:" + ",".join(str(as_uuid(one)) for one in ids[:100])
    return verb, text


@screen("/bulk/new", "bulk.run")
async def preview(view: View) -> Page:
    verb, text = _chosen(view)
    query = query_of(view, text)
    count = await search.bulk_preview(view.connection, verb, query, owner=view.tenant)
    sample = await search.search_jobs(view.connection, query, limit=5, owner=view.tenant)
    return Page(
        "bulk_new.html",
        f"{verb.capitalize()} many",
        {"verb": verb, "q": text, "count": count, "sample": sample.rows},
        live=False,
    )


@screen("/bulk/{id}", "bulk.run")
async def bulk(view: View) -> Page:
    found = await search.get_bulk(view.connection, view.uuid())
    if found is None or not view.owns(found.owner):
        raise HTTPException(404, "There is no such bulk action.")
    after = view.query.get("after")
    members = await search.bulk_members(view.connection, found.id, after=as_uuid(after) if after else None)
    return Page(
        "bulk.html",
        f"Bulk {found.verb}",
        {
            "bulk": found,
            "members": members,
            "took_s": between(found.created_at, found.finished_at or view.now),
        },
    )


@deed("/bulk", "bulk.run")
async def start(asked: Deed) -> tuple[str, str]:
    verb = _verb(asked.needed("verb"))
    needed = "jobs.retry" if verb == "retry" else "jobs.cancel"
    if not asked.view.may(needed):
        raise HTTPException(403, f"Your role may not do this: it needs {needed}.")
    query = query_of(asked.view, asked.text("q", most=8000))
    ramp = Ramp(
        waves=_waves(asked.text("ramp")),
        per_s=_number(asked, "per_s"),
        stop_share=(_number(asked, "stop") if asked.text("stop") else 20.0) / 100,  # type: ignore[operator]
    )
    bulk_id = await search.bulk_start(
        asked.connection,
        verb,
        query,
        by=asked.by,
        why=asked.text("why"),
        ramp=ramp,
        owner=asked.view.tenant,
    )
    made = await search.get_bulk(asked.connection, bulk_id)
    count = made.total if made else 0
    await asked.audit(f"bulk.{verb}", bulk_id, search=query.text, jobs=count, why=asked.text("why"))
    return f"/bulk/{bulk_id}", f"Started for {plural(count, 'job')}."


def _waves(text: str) -> tuple[int, ...]:
    """`10, 100`: sizes of the first waves; empty means all at once."""
    try:
        return tuple(max(1, int(part)) for part in text.replace(",", " ").split())[:10]
    except ValueError:
        raise InvalidError("Waves are whole numbers, as in 10, 100.", field="ramp") from None


def _number(asked: Deed, name: str) -> float | None:
    text = asked.text(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidError(f"{name} must be a number.", field=name) from None


async def _own(asked: Deed) -> UUID:
    found = await search.get_bulk(asked.connection, asked.view.uuid())
    if found is None or not asked.view.owns(found.owner):
        raise HTTPException(404, "There is no such bulk action.")
    return found.id


@deed("/bulk/{id}/control", "bulk.run")
async def control(asked: Deed) -> tuple[str, str]:
    bulk_id, verb = await _own(asked), asked.needed("verb")
    if verb not in {"pause", "resume", "stop"}:
        raise InvalidError("Choose pause, resume or stop.", field="verb")
    changed = await search.bulk_control(asked.connection, bulk_id, cast("Control", verb))
    await asked.audit(f"bulk.{verb}", bulk_id, changed=changed)
    return f"/bulk/{bulk_id}", f"{verb.capitalize()}: done." if changed else "Nothing to change."


@deed("/bulk/{id}/undo", "bulk.run")
async def undo(asked: Deed) -> tuple[str, str]:
    bulk_id = await _own(asked)
    count = 0
    for _ in range(100):
        taken = await search.bulk_undo(asked.connection, bulk_id)
        count += taken
        if not taken:
            break
    await asked.audit("bulk.undo", bulk_id, jobs=count)
    return f"/bulk/{bulk_id}", f"{plural(count, 'job')} taken back."


@screen("/batches/{id}", "batch.view")
async def batch(view: View) -> Page:
    found = await jobs.get_batch(view.connection, view.uuid())
    if found is None or not view.owns(found["owner"]):
        raise HTTPException(404, "There is no such batch.")
    members = await search.search_jobs(view.connection, f"batch:{view.uuid()}", before=view.before)
    return Page("batch.html", f"Batch {found['name'] or ''}", {"batch": found, "found": members})


@deed("/batches/{id}/cancel", "jobs.cancel")
async def cancel_batch(asked: Deed) -> tuple[str, str]:
    found = await jobs.get_batch(asked.connection, asked.view.uuid())
    if found is None or not asked.view.owns(found["owner"]):
        raise HTTPException(404, "There is no such batch.")
    reason = asked.text("reason") or None
    count = await jobs.cancel_jobs(asked.connection, {"batch": found["id"]}, reason, limit=AT_ONCE)
    await asked.audit("batch.cancel", found["id"], jobs=count)
    rest = " There may be more: cancel again." if count == AT_ONCE else ""
    return f"/batches/{found['id']}", f"{plural(count, 'job')} cancelled.{rest}"
