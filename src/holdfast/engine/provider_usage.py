"""Read what calls of providers (language models, speech servers and so on) used and cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

from holdfast.engine.connection import Connection

PROVIDER_USAGE_GROUPS = ("owner", "day", "kind", "provider", "model")


async def list_provider_usage(
    connection: Connection,
    *,
    owner: str | None = None,
    since: date | None = None,
    until: date | None = None,
    group_by: Sequence[str] = ("kind", "provider", "model"),
) -> list[dict[str, Any]]:
    """List the usage of providers, grouped by some of PROVIDER_USAGE_GROUPS, the most expensive first."""
    query = "select * from holdfast.list_provider_usage($1, $2, $3, $4)"
    return [dict(row) for row in await connection.fetch(query, owner, since, until, list(group_by))]


async def list_job_provider_usage(connection: Connection, job_id: UUID) -> list[dict[str, Any]]:
    """List the usage of a job by task, attempt and model, from the calls of the last 90 days."""
    query = "select * from holdfast.list_job_provider_usage($1)"
    return [dict(row) for row in await connection.fetch(query, job_id)]
