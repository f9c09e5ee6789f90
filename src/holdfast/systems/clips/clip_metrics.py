"""The metrics of the clip system at `/metrics`: clips by status, waiting messages, and the last hour."""

from __future__ import annotations

from typing import Any, Final

from holdfast.server import MetricSample
from holdfast.systems.clips.clip_queries import is_installed
from holdfast.systems.tables import qualify_tables

STATUSES: Final = ("pending", "scraping", "enriching")
CLIPS_HELP: Final = "Clips that are not finished, by status."
ENDED_HELP: Final = "Clips that ended in the last hour, by outcome."
WAIT_HELP: Final = "Seconds since the oldest visible message of a queue became visible."


async def list_clip_metrics(connection: Any, schema: str) -> list[MetricSample]:
    """Return the metrics, or none if the clip system is not installed."""
    if not await is_installed(connection, schema):
        return []
    rows = await connection.fetch(
        qualify_tables(
            "select processing_status as status, count(*) as count from {}.clipnest_videos"
            " where processing_status in ('pending', 'scraping', 'enriching') group by 1"
            " union all select processing_status, count(*) from {}.clipnest_videos"
            " where processing_status in ('done', 'failed')"
            " and updated_at > clock_timestamp() - interval '1 hour' group by 1",
            schema,
        )
    )
    counts = {row["status"]: float(row["count"]) for row in rows}
    waits = await connection.fetchrow(
        "select (select extract(epoch from holdfast.now() - min(vt)) from pgmq.q_scrape_jobs),"
        " (select extract(epoch from holdfast.now() - min(vt)) from pgmq.q_enrich_jobs)"
    )
    return [
        *(
            MetricSample("holdfast_clips", CLIPS_HELP, counts.get(status, 0.0), {"status": status})
            for status in STATUSES
        ),
        *(
            MetricSample(
                "holdfast_clips_ended_last_hour", ENDED_HELP, counts.get(outcome, 0.0), {"outcome": outcome}
            )
            for outcome in ("done", "failed")
        ),
        *(
            MetricSample(
                "holdfast_clips_wait_seconds", WAIT_HELP, max(0.0, float(wait or 0)), {"queue": queue}
            )
            for queue, wait in zip(("scrape_jobs", "enrich_jobs"), waits, strict=True)
        ),
    ]
