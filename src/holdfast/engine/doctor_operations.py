"""Checks of `holdfast doctor` about running operations: queues without workers, lost workers, alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from holdfast.engine import alerts
from holdfast.engine.connection import Connection
from holdfast.formatting import describe_count, format_count, format_long_duration, sanitize_text

MAX_LISTED: Final = 3
_FIND_ALERT_LIST = "select pg_catalog.to_regprocedure('holdfast.list_alerts(boolean,integer)')::text"
_LIST_QUEUES_WITHOUT_WORKERS = """
select q ->> 'queue' as name, (q ->> 'ready')::bigint as ready, (q ->> 'ready_exact')::boolean as exact,
  (q ->> 'oldest_s')::double precision as oldest_s
from holdfast.list_task_queues(null, 10000) as q
where (q ->> 'ready')::bigint > 0 and (q ->> 'workers')::bigint = 0 and q ->> 'paused_at' is null
order by 2 desc
"""
_LIST_LOST_WORKERS = """
select w ->> 'name' as name, (w ->> 'seen_s')::double precision as seen_s,
  (w ->> 'running')::bigint as running
from holdfast.list_workers(3600) as w where w ->> 'state' = 'lost' order by 3 desc, 2
"""


class OperationsFinding(NamedTuple):
    """The result of one check: its level, what was found, and the fix."""

    level: Literal["ok", "warn"]
    text: str
    fix: str | None = None


async def is_installed(connection: Connection) -> bool:
    """Return whether the schema has what these checks read."""
    return await connection.fetchval(_FIND_ALERT_LIST) is not None


async def check_unserved_queues(connection: Connection) -> OperationsFinding:
    """Find queues with ready tasks that no live worker serves."""
    rows = await connection.fetch(_LIST_QUEUES_WITHOUT_WORKERS)
    if not rows:
        return OperationsFinding("ok", "every queue with ready tasks has a live worker")
    described = [
        f"{sanitize_text(row['name'], 60)} ({describe_count(row['ready'], 'task', row['exact'])},"
        f" the oldest for {format_long_duration(row['oldest_s'] or 0)})"
        for row in rows
    ]
    fix = "Start a worker that serves them: holdfast worker APP --queue NAME"
    return OperationsFinding("warn", f"no live worker serves {_join(described)}", fix)


async def check_lost_workers(connection: Connection) -> OperationsFinding:
    """Find workers that vanished in the last hour instead of shutting down."""
    rows = await connection.fetch(_LIST_LOST_WORKERS)
    if not rows:
        return OperationsFinding("ok", "no worker was lost in the last hour")
    described = [
        f"{sanitize_text(row['name'], 60)} (last seen {format_long_duration(row['seen_s'])} ago"
        + (f", {format_count(row['running'], 'task')} not returned yet)" if row["running"] else ")")
        for row in rows
    ]
    fix = "See their logs. Other workers take over their tasks: holdfast workers list"
    return OperationsFinding("warn", f"lost: {_join(described)}", fix)


async def check_alerts(connection: Connection) -> OperationsFinding:
    """Report the alerts that fire, and rules that cannot be evaluated."""
    firing = [alert for alert in await alerts.list_alerts(connection) if alert.severity != "info"]
    broken = [rule.name for rule in await alerts.list_alert_rules(connection) if rule.last_error]
    if firing:
        described = [f"{alert.severity} {alert.rule}: {sanitize_text(alert.subject, 60)}" for alert in firing]
        return OperationsFinding("warn", f"firing: {_join(described)}", "See: holdfast alert list")
    if broken:
        fix = "See the error: holdfast alert rule list"
        return OperationsFinding("warn", f"rules that cannot be evaluated: {_join(broken)}", fix)
    return OperationsFinding("ok", "no alert fires")


def _join(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more
