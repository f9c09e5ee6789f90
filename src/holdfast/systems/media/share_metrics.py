"""The metrics of the media system at `/metrics`: shares by status, and the downloads of the last hour."""

from __future__ import annotations

from typing import Any, Final

from holdfast.server import MetricSample
from holdfast.systems.media import share_queries as queries
from holdfast.systems.tables import qualify_tables

UNFINISHED_STATUSES: Final = ("pending", "processing", "retry", "failed")
LAST_HOUR_QUERY: Final = (
    "select (select avg_seconds from {}.download_average_time)::double precision as seconds,"
    " (select failure_rate from {}.download_failure_rate) as failure_rate,"
    " (select count(*) from {}.shares s where s.download_status = 'completed'"
    " and s.download_completed_at > now() - interval '1 hour') as completed"
)


async def list_media_metrics(connection: Any, schema: str) -> list[MetricSample]:
    """Return the metrics, or none if the media system is not installed."""
    table = qualify_tables("{}.share_starts", schema)
    if await connection.fetchval("select pg_catalog.to_regclass($1) is null", table):
        return []
    counts = await queries.count_shares_by_status(connection, schema)
    row = await connection.fetchrow(qualify_tables(LAST_HOUR_QUERY, schema))
    text = "Shares whose download is not complete."
    samples = [
        MetricSample("holdfast_media_shares", text, counts.get(status, 0), {"status": status})
        for status in UNFINISHED_STATUSES
    ]
    samples.append(
        MetricSample(
            "holdfast_media_completed_last_hour", "Downloads completed in the last hour.", row["completed"]
        )
    )
    if row["seconds"] is not None:
        text = "Average duration of the downloads of the last hour."
        samples.append(MetricSample("holdfast_media_download_seconds", text, row["seconds"]))
    if row["failure_rate"] is not None:
        text = "Part of the shares of the last hour that failed, from 0 to 1."
        samples.append(MetricSample("holdfast_media_failure_ratio", text, row["failure_rate"] / 100))
    return samples
