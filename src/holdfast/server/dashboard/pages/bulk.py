"""Bulk actions: retry or cancel many jobs in stages, with a preview, and pause, stop or undo them."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from starlette.exceptions import HTTPException

from holdfast.engine import batches as engine_batches
from holdfast.engine import bulk_actions, search
from holdfast.engine.bulk_actions import BulkCommand, BulkStageOptions, BulkVerb
from holdfast.engine.search import JobCount
from holdfast.errors import InvalidError
from holdfast.formatting import format_count, seconds_between
from holdfast.server.dashboard.pages.jobs import parse_permitted_search
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.shard_pages import change_all_shards, read_all_shards
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest, parse_uuid_or_404

MAX_SELECTED_JOBS = 100
MAX_PREVIEWED_JOBS = 5
MAX_STAGES_PER_BULK_ACTION = 10
MAX_UNDO_BATCHES = 100
DEFAULT_MAX_FAILED_PERCENT = 20.0
CONFIRMATIONS_BY_BULK_COMMAND = {
    "pause": "Bulk action paused.",
    "resume": "Bulk action resumed.",
    "stop": "Bulk action stopped.",
}


def _parse_bulk_verb(text: str) -> BulkVerb:
    if text == "retry":
        return "retry"
    if text == "cancel":
        return "cancel"
    raise InvalidError("Choose retry or cancel.", field="verb")


@register_page("/bulk", "batch.view")
async def list_batches_and_bulk_actions(request: PageRequest) -> DashboardPage:
    batches = await engine_batches.list_batches(request.connection, owner=request.tenant, before=None)
    actions = await bulk_actions.list_bulk_actions(request.connection) if request.can("bulk.run") else []
    visible = [bulk for bulk in actions if request.can_see_owner(bulk.owner)]
    return DashboardPage(
        "bulk_actions.html",
        "Batches and bulk actions",
        {
            "batches": batches,
            "batch_states": await engine_batches.list_batch_states(request.connection, batches),
            "bulk_actions": visible,
        },
    )


def _parse_job_selection(request: PageRequest) -> tuple[BulkVerb, str]:
    """Return the action (retry or cancel) and a search query that selects the chosen jobs."""
    verb, ids = _parse_bulk_verb(request.query.get("verb", "")), request.query.getlist("id")
    text = request.query.get("q", "").strip()
    if ids and request.query.get("all") != "yes":
        text = "job:" + ",".join(str(parse_uuid_or_404(job_id)) for job_id in ids[:MAX_SELECTED_JOBS])
    return verb, text


@register_page("/bulk/new", "bulk.run", all_shards="merged")
async def preview_bulk_action(request: PageRequest) -> DashboardPage:
    verb, text = _parse_job_selection(request)
    counts: dict[int, JobCount] = {}
    missing: list[int] = []
    if request.site.shard_sites:
        previews, missing = await read_all_shards(request, lambda own: _load_preview(own, verb, text))
        counts = {number: count for number, (count, _) in previews.items()}
        count = JobCount(
            count=sum(each.count for each in counts.values()),
            exact=all(each.exact for each in counts.values()),
            at_least=any(each.at_least for each in counts.values()),
        )
        sample = [row for _, rows in previews.values() for row in rows]
    else:
        count, sample = await _load_preview(request, verb, text)
    return DashboardPage(
        "bulk_action_preview.html",
        f"{verb.capitalize()} jobs",
        {
            "verb": verb,
            "q": text,
            "count": count,
            "sample": sample,
            "shard_counts": counts,
            "missing_shards": missing,
        },
        live=False,
    )


async def _load_preview(
    request: PageRequest, verb: BulkVerb, text: str
) -> tuple[JobCount, list[dict[str, Any]]]:
    """Return how many jobs a bulk action would change, and some of them."""
    query = await parse_permitted_search(request, text)
    count = await bulk_actions.preview_bulk_action(request.connection, verb, query, owner=request.tenant)
    sample = await search.search_jobs(
        request.connection, query, limit=MAX_PREVIEWED_JOBS, owner=request.tenant
    )
    return count, sample.rows


@register_page("/bulk/{id}", "bulk.run")
async def show_bulk_action(request: PageRequest) -> DashboardPage:
    bulk = await bulk_actions.get_bulk_action(request.connection, request.parse_id())
    if bulk is None or not request.can_see_owner(bulk.owner):
        raise HTTPException(404, f"Bulk action {request.parse_id()} does not exist.")
    after = request.query.get("after")
    jobs = await bulk_actions.list_bulk_action_jobs(
        request.connection, bulk.id, after=parse_uuid_or_404(after) if after else None
    )
    elapsed_s = seconds_between(bulk.created_at, bulk.finished_at or request.now)
    return DashboardPage(
        "bulk_action.html", f"Bulk {bulk.verb}", {"bulk": bulk, "jobs": jobs, "elapsed_s": elapsed_s}
    )


@register_action("/bulk", "bulk.run")
async def start_bulk_action(action: ActionRequest) -> tuple[str, str]:
    verb = _parse_bulk_verb(action.get_required_text("verb"))
    permission = "jobs.retry" if verb == "retry" else "jobs.cancel"
    if not action.request.can(permission):
        raise HTTPException(403, f"Your role does not have the permission {permission}.")
    if action.request.site.shard_sites:
        return await _start_on_all_shards(action, verb)
    bulk_id, count = await _start_on_one_database(action, verb)
    return f"/bulk/{bulk_id}", f"Bulk {verb} of {format_count(count, 'job')} started."


async def _start_on_all_shards(action: ActionRequest, verb: BulkVerb) -> tuple[str, str]:
    """Start a bulk action on each shard that has matching jobs. Name the shards that did not answer."""

    async def start(own: ActionRequest) -> int:
        preview, _ = await _load_preview(own.request, verb, own.get_text("q", max_chars=8000))
        return (await _start_on_one_database(own, verb))[1] if preview.count else 0

    counts, missing = await change_all_shards(action, start)
    total = format_count(sum(counts.values()), "job")
    details = ", ".join(f"shard {number}: {count}" for number, count in counts.items())
    text = f"Bulk {verb} of {total} started ({details})."
    if missing:
        names = ", ".join(map(str, missing))
        text += f" Shard {names} did not answer: look there before you start it again."
    return "/bulk", text


async def _start_on_one_database(action: ActionRequest, verb: BulkVerb) -> tuple[UUID, int]:
    """Start a bulk action with the options of a form. Return its id and how many jobs it has."""
    query = await parse_permitted_search(action.request, action.get_text("q", max_chars=8000))
    stop_percent = action.get_number("stop")
    ramp = BulkStageOptions(
        stage_sizes=_parse_stage_sizes(action.get_text("ramp")),
        max_jobs_per_s=action.get_number("max_jobs_per_s"),
        max_failed_share=(DEFAULT_MAX_FAILED_PERCENT if stop_percent is None else stop_percent) / 100,
    )
    reason = action.get_text("reason")
    bulk_id = await bulk_actions.start_bulk_action(
        action.connection,
        verb,
        query,
        by=action.actor_name,
        reason=reason,
        ramp=ramp,
        owner=action.request.tenant,
    )
    bulk = await bulk_actions.get_bulk_action(action.connection, bulk_id)
    count = bulk.total if bulk else 0
    await action.record_audit(f"bulk.{verb}", bulk_id, search=query.text, jobs=count, reason=reason)
    return bulk_id, count


def _parse_stage_sizes(text: str) -> tuple[int, ...]:
    """Parse the stage sizes of a bulk action, such as `10, 100`. An empty text means one stage."""
    parts = text.replace(",", " ").split()
    if len(parts) > MAX_STAGES_PER_BULK_ACTION:
        raise InvalidError(
            f"A bulk action has at most {MAX_STAGES_PER_BULK_ACTION} stages, not {len(parts)}.", field="ramp"
        )
    try:
        return tuple(max(1, int(part)) for part in parts)
    except ValueError:
        raise InvalidError("Stages must be whole numbers, such as 10, 100.", field="ramp") from None


async def _get_visible_bulk_action_id(action: ActionRequest) -> UUID:
    bulk = await bulk_actions.get_bulk_action(action.connection, action.request.parse_id())
    if bulk is None or not action.request.can_see_owner(bulk.owner):
        raise HTTPException(404, f"Bulk action {action.request.parse_id()} does not exist.")
    return bulk.id


@register_action("/bulk/{id}/control", "bulk.run")
async def control_bulk_action(action: ActionRequest) -> tuple[str, str]:
    bulk_id, verb = await _get_visible_bulk_action_id(action), action.get_required_text("verb")
    if verb not in CONFIRMATIONS_BY_BULK_COMMAND:
        raise InvalidError("Choose pause, resume or stop.", field="verb")
    changed = await bulk_actions.control_bulk_action(action.connection, bulk_id, cast("BulkCommand", verb))
    await action.record_audit(f"bulk.{verb}", bulk_id, changed=changed)
    return f"/bulk/{bulk_id}", CONFIRMATIONS_BY_BULK_COMMAND[verb] if changed else "Nothing changed."


@register_action("/bulk/{id}/undo", "bulk.run")
async def undo_bulk_action(action: ActionRequest) -> tuple[str, str]:
    bulk_id = await _get_visible_bulk_action_id(action)
    count = 0
    for _ in range(MAX_UNDO_BATCHES):
        undone = await bulk_actions.undo_bulk_action(action.connection, bulk_id)
        count += undone
        if not undone:
            break
    await action.record_audit("bulk.undo", bulk_id, jobs=count)
    return f"/bulk/{bulk_id}", f"Undone for {format_count(count, 'job')}."
