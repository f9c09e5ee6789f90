"""Why a task is not running, as a sentence: what `explain_task` found, in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from holdfast.cli import words
from holdfast.engine import insight, jobs
from holdfast.engine.connection import Connection
from holdfast.errors import NotFoundError

MOST_TASKS = 20
OPEN = {"waiting", "scheduled", "ready", "running"}


async def why(connection: Connection, job_id: UUID) -> list[dict[str, Any]]:
    """One row for each task that has not ended, or for all when the job has: its state and the reasons."""
    found = await jobs.get_job(connection, job_id)
    if found is None:
        raise NotFoundError(f"There is no job {job_id}.", field="id")
    tasks = [task for task in found["tasks"] if task["status"] in OPEN] or list(found["tasks"])
    rows: list[dict[str, Any]] = []
    for task in tasks[:MOST_TASKS]:
        explained = await insight.explain_task(connection, UUID(task["id"]))
        reasons = explained.get("reasons") or [{"reason": "unknown"}]
        told = {"task": task["name"], "id": task["id"], "status": explained["status"]}
        rows.extend({**each, **told, "why": sentence(each)} for each in reasons)
    return rows


def sentence(reason: dict[str, Any], now: datetime | None = None) -> str:
    now = now or datetime.now(UTC)
    say = _SAY.get(str(reason.get("reason")))
    return words.clean(say(reason, now), 500) if say else words.clean(reason, 500)


def _ended(reason: dict[str, Any], now: datetime) -> str:
    told = f": {words.failure(reason)}" if reason.get("error") else ""
    return f"It ended {words.since(reason.get('at'), now)} ago{told}"


def _scheduled(reason: dict[str, Any], now: datetime) -> str:
    error = words.failure(reason)
    after = f", because the last attempt failed: {error}" if error else ""
    return f"It is to run {words.until(reason.get('until'), now)}{after}"


def _dependency(reason: dict[str, Any], _: datetime) -> str:
    return f"It waits for {reason.get('task')}, which is {reason.get('status')}"


def _running(reason: dict[str, Any], now: datetime) -> str:
    return (
        f"It runs, since {words.since(reason.get('since'), now)}, on {reason.get('worker') or 'a worker'}; "
        f"its lease ends {words.until(reason.get('lease_until'), now)}"
    )


def _paused(reason: dict[str, Any], now: datetime) -> str:
    why = f": {reason['why']}" if reason.get("why") else ""
    ends = f", until {reason['until']}" if reason.get("until") else ""
    return (
        f"Its queue was paused {words.since(reason.get('since'), now)} ago by {reason.get('by')}{ends}{why}"
    )


def _no_worker(reason: dict[str, Any], _: datetime) -> str:
    return f"No live worker serves queue {reason.get('queue')} and knows {reason.get('type')}"


def _asleep(reason: dict[str, Any], now: datetime) -> str:
    return f"Limit {_limit(reason)} is asleep and wakes {words.until(reason.get('until'), now)}"


def _full(reason: dict[str, Any], _: datetime) -> str:
    held = words.several(reason, "held_by")
    holders = f", held by {', '.join(held)}" if held else ""
    return f"Limit {_limit(reason)} is full: {reason.get('running')} of {reason.get('max_running')}{holders}"


def _rate(reason: dict[str, Any], now: datetime) -> str:
    return f"Limit {_limit(reason)} lets the next one start {words.until(reason.get('until'), now)}"


def _expired(reason: dict[str, Any], now: datetime) -> str:
    return f"It had to start before {words.since(reason.get('start_before'), now)} ago, and will be ended"


def _queued(reason: dict[str, Any], now: datetime) -> str:
    ahead = int(reason.get("ahead") or 0)
    more = "at least " if ahead >= 1000 else ""
    front = f"{more}{words.many(ahead, 'task')} of its kind before it" if ahead else "nothing before it"
    return f"It is ready since {words.since(reason.get('since'), now)}, with {front}: workers are busy"


def _limit(reason: dict[str, Any]) -> str:
    return f"{reason.get('limit')} ({reason['key']})" if reason.get("key") else str(reason.get("limit"))


_SAY = {
    "ended": _ended, "scheduled": _scheduled, "dependency": _dependency, "running": _running,
    "paused": _paused, "no_worker": _no_worker, "asleep": _asleep, "limit": _full, "rate": _rate,
    "expired": _expired, "queued": _queued,
}  # fmt: skip
