"""SQL queries of the report system: reports with their last state, which outlive the jobs of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast import Client
from holdfast.systems.tables import qualify_tables

MAX_CLEANUP_BATCH_ROWS = 500
_SELECT_REPORTS = (
    "select v.id, v.type, v.status, v.progress::text as progress, v.created_at, r.error"
    " from {}.jobs v join {}.reports r on r.id = v.id where v.user_id = $1"
)


@dataclass(frozen=True)
class StoredReport:
    """A row of the view `jobs`. `progress` has the fields of the report contract."""

    id: UUID
    type: str
    status: str
    progress: dict[str, Any]
    created_at: datetime
    error: str | None


async def find_report(connection: Any, schema: str, report_id: UUID, owner: str) -> StoredReport | None:
    """Return a report, or None if the user has no report with this id."""
    query = qualify_tables(f"{_SELECT_REPORTS} and v.id = $2", schema)
    row = await connection.fetchrow(query, owner, report_id)
    return None if row is None else _build_stored_report(row)


async def list_reports(
    connection: Any, schema: str, owner: str, *, status: str | None, before: UUID | None, limit: int
) -> list[StoredReport]:
    """List the reports of a user, newest first. `before` is the id of the last report of the page before."""
    query = (
        f"{_SELECT_REPORTS} and ($2::text is null or v.status = $2) and ($3::uuid is null or v.id < $3)"
        " order by v.id desc limit $4"
    )
    rows = await connection.fetch(qualify_tables(query, schema), owner, status, before, limit)
    return [_build_stored_report(row) for row in rows]


async def list_reports_by_id(
    connection: Any, schema: str, owner: str, report_ids: list[UUID]
) -> dict[UUID, StoredReport]:
    """Return those reports of a user that have one of these ids, by id."""
    query = qualify_tables(f"{_SELECT_REPORTS} and v.id = any ($2)", schema)
    return {row["id"]: _build_stored_report(row) for row in await connection.fetch(query, owner, report_ids)}


def _build_stored_report(row: Any) -> StoredReport:
    return StoredReport(**{**dict(row), "progress": msgspec.json.decode(row["progress"])})


async def delete_old_reports(client: Client, schema: str, retention: timedelta) -> int:
    """Delete reports that ended before the retention time and have no file any more. Return their number."""
    query = qualify_tables("select {}.delete_old_reports(holdfast.now() - $1::interval, $2)", schema)
    deleted = 0
    while True:
        async with client.transaction() as connection:
            count = int(await connection.fetchval(query, retention, MAX_CLEANUP_BATCH_ROWS))
        deleted += count
        if count < MAX_CLEANUP_BATCH_ROWS:
            return deleted
