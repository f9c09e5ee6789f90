"""Queues of all shards: the header of the queue pages, and changes on all shards at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.client.shard_merging import add_up_by_key
from holdfast.engine import queues
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.shard_pages import change_all_shards, read_all_shards
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest, build_dashboard_url

# Values that the form submits, with their labels and their length in hours.
PAUSE_PERIOD_OPTIONS: Final[dict[str, tuple[str, float | None]]] = {
    "15m": ("15 minutes", 0.25),
    "1h": ("1 hour", 1),
    "4h": ("4 hours", 4),
    "1d": ("1 day", 24),
    "until resumed": ("Until resumed", None),
}
PAUSE_LABELS: Final = {value: label for value, (label, _) in PAUSE_PERIOD_OPTIONS.items()}
_ADDED_COLUMNS: Final = (
    *("queue", "oldest_s", "workers"),
    *("ready", "ready_exact", "running", "running_exact", "scheduled", "scheduled_exact"),
)
Row = Mapping[str, Any]


def build_queues_header(request: PageRequest, pages: Mapping[int, DashboardPage]) -> DashboardPage:
    """Build the list of queues over all shards."""
    rows = _add_up_queues(request, {number: page.values["queues"] for number, page in pages.items()})
    return DashboardPage("queues_header.html", "Queues", {"rows": rows})


def build_queue_header(request: PageRequest, pages: Mapping[int, DashboardPage]) -> DashboardPage:
    """Build the state of one queue over all shards, with the buttons that pause and resume it on all."""
    [queue] = _add_up_queues(request, {number: [page.values["queue"]] for number, page in pages.items()})
    return DashboardPage("queue_header.html", "Queue", {"queue": queue, "pause_options": PAUSE_LABELS})


def _add_up_queues(request: PageRequest, rows_by_shard: Mapping[int, Sequence[Row]]) -> list[dict[str, Any]]:
    paused: dict[str, list[int]] = {}
    for number, rows in sorted(rows_by_shard.items()):
        for row in rows:
            if row.get("paused_at"):
                paused.setdefault(row["queue"], []).append(number)
    added = add_up_by_key(
        [{name: row.get(name) for name in _ADDED_COLUMNS} for rows in rows_by_shard.values() for row in rows],
        ("queue",),
    )
    return [
        {
            **row,
            "paused_shards": paused.get(row["queue"], []),
            "is_paused_everywhere": len(paused.get(row["queue"], [])) == len(request.site.shard_sites),
        }
        for row in added
    ]


async def change_queue_on_all_shards(
    action: ActionRequest,
    name: str,
    change: Callable[[ActionRequest], Awaitable[bool]],
    words: tuple[str, str],
    undo: UndoAction,
) -> ActionResult:
    """Change a queue on all shards, also where it has no tasks yet: the next one may go there.

    `words` say what happened on a shard that changed, and on one that did not.
    """
    known, _ = await read_all_shards(action.request, lambda own: queues.list_queue_names(own.connection))
    queues.check_queue_name(name, [each for names in known.values() for each in names])
    changed, missing = await change_all_shards(action, change)
    answers = [f"shard {number}: {words[0] if done else words[1]}" for number, done in changed.items()]
    answers += [f"shard {number}: did not answer" for number in missing]
    text = f"Queue {name}: {', '.join(answers)}."
    if missing:
        text += " Press the button again when all shards answer."
    return ActionResult(
        build_dashboard_url("/queue", name=name), text, undo if all(changed.values()) else None
    )
