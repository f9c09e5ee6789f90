"""The data of `holdfast top`: one snapshot of the database, or the sums of several shards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.cli.top_actions import PendingAction
from holdfast.client import Client
from holdfast.client.shard_merging import add_up_by_key
from holdfast.engine import error_groups, search
from holdfast.engine import queues as engine_queues
from holdfast.engine import workers as engine_workers
from holdfast.engine.connection import Connection
from holdfast.errors import DatabaseError, DatabaseUnavailableError

SHOWN_ERROR_PERIOD = timedelta(hours=1)
SHOWN_WORKER_PERIOD_S = 600
MAX_FETCHED_JOBS = 100
MAX_FETCHED_ERRORS = 50
SHARD_TIMEOUT_S = 5.0


@dataclass
class TopSnapshot:
    """The data of the last refresh of `holdfast top`, and the view on the screen."""

    view: str = "overview"
    paused: bool = False
    error: str | None = None
    at: datetime | None = None
    queues: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    running: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    workers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    selected: int = 0
    pending: PendingAction | None = None
    message: str | None = None
    opened_job: str | None = None

    @property
    def selectable_rows(self) -> list[dict[str, Any]]:
        """The rows of the view from which the arrows select one, in the order of the screen."""
        if self.view == "queues":
            return sort_queues(self.queues)
        return self.running if self.view == "jobs" else []

    @property
    def selected_row(self) -> dict[str, Any] | None:
        rows = self.selectable_rows
        return rows[min(self.selected, len(rows) - 1)] if rows else None

    async def fetch_from_database(self, connection: Connection) -> None:
        """Read queues, workers, running jobs and errors from the database into this snapshot."""
        since = datetime.now(UTC) - SHOWN_ERROR_PERIOD
        self.queues = await engine_queues.list_task_queues(connection)
        self.workers = await engine_workers.list_workers(connection, within_s=SHOWN_WORKER_PERIOD_S)
        self.running = (await search.search_jobs(connection, "state:running", limit=MAX_FETCHED_JOBS)).rows
        self.errors = await error_groups.list_error_groups(connection, since=since, limit=MAX_FETCHED_ERRORS)
        self.at, self.error = datetime.now(UTC), None

    def take_sums(self, snapshots: dict[int, TopSnapshot], missing: Sequence[int]) -> None:
        """Replace the data by that of several shards: queues and errors are added up."""
        parts = list(snapshots.values())
        self.queues = add_up_by_key([row for part in parts for row in part.queues], ("queue",))
        errors = add_up_by_key([row for part in parts for row in part.errors], ("cause",))
        self.errors = sorted(errors, key=lambda row: str(row["last_at"]), reverse=True)[:MAX_FETCHED_ERRORS]
        running = [row for part in parts for row in part.running]
        self.running = sorted(running, key=lambda row: str(row["id"]), reverse=True)[:MAX_FETCHED_JOBS]
        self.workers = [row for part in parts for row in part.workers]
        names = ", ".join(map(str, missing))
        self.at = datetime.now(UTC)
        self.error = f"shard {names} does not answer and is not counted" if missing else None

    @property
    def totals(self) -> dict[str, Any]:
        live = [worker for worker in self.workers if worker["state"] in {"live", "draining"}]
        return {
            **_sum_task_counts(self.queues),
            "failing": sum(group["attempts"] for group in self.errors),
            "workers": len(live),
            "unresponsive": sum(worker["state"] == "unresponsive" for worker in self.workers),
        }


def _sum_task_counts(queues: list[dict[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Any] = {}
    for state in ("ready", "running", "scheduled"):
        totals[state], totals[f"{state}_exact"] = engine_queues.sum_task_counts(queues, state)
    return totals


async def fetch_snapshot(snapshot: TopSnapshot, client: Client) -> None:
    """Read the data of a snapshot from the database, or from all shards at once."""
    if not client.shard_numbers:
        async with client.connection() as connection:
            await snapshot.fetch_from_database(connection)
        return

    async def fetch_one(number: int) -> TopSnapshot:
        part = TopSnapshot()
        async with asyncio.timeout(SHARD_TIMEOUT_S), client.shard(number).connection() as connection:
            await part.fetch_from_database(connection)
        return part

    numbers = client.shard_numbers
    parts = await asyncio.gather(*map(fetch_one, numbers), return_exceptions=True)
    answered: dict[int, TopSnapshot] = {}
    for number, part in zip(numbers, parts, strict=True):
        if isinstance(part, TopSnapshot):
            answered[number] = part
        elif not isinstance(part, (DatabaseError, TimeoutError)):
            raise part
    if not answered:
        raise DatabaseUnavailableError("No shard answered.")
    snapshot.take_sums(answered, [number for number in numbers if number not in answered])


def sort_queues(queues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return queues in the order of the screen: the longest first."""
    return sorted(queues, key=lambda q: (-(q["ready"] + q["running"]), q["queue"]))
