"""Bulk actions: retry or cancel many jobs as one action that you can watch, pause, stop and undo."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, encode_json, fetch_objects
from holdfast.engine.search import JobCount, build_search_filter
from holdfast.search import SearchQuery

BulkVerb = Literal["retry", "cancel"]
BulkCommand = Literal["pause", "resume", "stop"]


class BulkAction(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk retry or bulk cancellation: its search, its progress and its outcomes.

    Of the `known` outcomes, `failed_again` jobs failed again. `pending` jobs have not ended. `skipped` jobs
    were skipped because they had changed.
    """

    id: UUID
    verb: BulkVerb
    status: Literal["running", "paused", "stopped", "done", "undone"]
    search: str
    by: str = msgspec.field(name="started_by")
    reason: str
    total: int
    done: int
    skipped: int
    failed_again: int
    undone: int
    stage: int
    stage_sizes: list[int]
    max_jobs_per_s: float | None
    max_failed_share: float
    stop_reason: str | None
    owner: str | None
    created_at: datetime
    stage_started_at: datetime | None
    finished_at: datetime | None
    known: int = 0
    pending: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the bulk action is running or paused."""
        return self.status in {"running", "paused"}


class BulkStageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a bulk retry: sizes of its first stages, maximum rate, and when it stops by itself.

    The action stops when more than `max_failed_share` of the retried jobs fail again.
    """

    stage_sizes: tuple[int, ...] = (10, 100)
    max_jobs_per_s: float | None = None
    max_failed_share: float = 0.2
    limit: int | None = None

    @property
    def options(self) -> JsonObject:
        """The same options as JSON for the SQL function `start_bulk_action`."""
        options = {
            "stage_sizes": list(self.stage_sizes),
            "max_jobs_per_s": self.max_jobs_per_s,
            "max_failed_share": self.max_failed_share,
            "limit": self.limit,
        }
        return {name: value for name, value in options.items() if value is not None}


async def preview_bulk_action(
    connection: Connection, verb: BulkVerb, query: SearchQuery | str, *, owner: str | None = None
) -> JobCount:
    """Count the jobs that a bulk action would affect."""
    call = "select holdfast.preview_bulk_action($1, $2)"
    text = await connection.fetchval(call, verb, build_search_filter(query, owner))
    return msgspec.json.decode(text, type=JobCount)


async def start_bulk_action(
    connection: Connection,
    verb: BulkVerb,
    query: SearchQuery | str,
    *,
    by: str,
    reason: str,
    ramp: BulkStageOptions | None = None,
    owner: str | None = None,
) -> UUID:
    """Start a bulk action on all jobs that match the search now. Return the id of the bulk action."""
    text = query if isinstance(query, str) else query.text
    options = encode_json((ramp or BulkStageOptions()).options)
    call = "select holdfast.start_bulk_action($1, $2, $3, $4, $5, $6)"
    bulk_id = await connection.fetchval(
        call, verb, build_search_filter(query, owner), text, by, reason, options
    )
    return cast("UUID", bulk_id)


async def advance_bulk_actions(connection: Connection, *, limit: int = 200) -> int:
    """Run the next step of every running bulk action. Return the number of processed jobs."""
    return int(await connection.fetchval("select holdfast.advance_bulk_actions($1)", limit))


async def control_bulk_action(connection: Connection, bulk_id: UUID, command: BulkCommand) -> bool:
    """Pause, resume or stop a bulk action. Return False if nothing changed."""
    return bool(await connection.fetchval("select holdfast.control_bulk_action($1, $2)", bulk_id, command))


async def undo_bulk_action(connection: Connection, bulk_id: UUID, *, limit: int = 1000) -> int:
    """Undo a bulk action on jobs that have not started since. Return the number; repeat until it is 0."""
    return int(await connection.fetchval("select holdfast.undo_bulk_action($1, $2)", bulk_id, limit))


async def get_bulk_action(connection: Connection, bulk_id: UUID) -> BulkAction | None:
    """Return a bulk action with its outcomes so far, or None."""
    text = await connection.fetchval("select holdfast.get_bulk_action($1)", bulk_id)
    return None if text is None else msgspec.json.decode(text, type=BulkAction)


async def list_bulk_actions(
    connection: Connection, *, before: UUID | None = None, limit: int = 50
) -> list[BulkAction]:
    """List bulk actions, newest first."""
    rows = await connection.fetch("select holdfast.list_bulk_actions($1, $2)", before, limit)
    return [msgspec.json.decode(row[0], type=BulkAction) for row in rows]


async def list_bulk_action_jobs(
    connection: Connection, bulk_id: UUID, *, after: UUID | None = None, limit: int = 50
) -> list[JsonObject]:
    """List the jobs of a bulk action in the order of processing."""
    return await fetch_objects(
        connection, "select holdfast.list_bulk_action_jobs($1, $2, $3)", bulk_id, after, limit
    )
