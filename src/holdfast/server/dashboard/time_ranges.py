"""The time range of the charts of a page: a preset, or two times that the reader chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast.engine import overview
from holdfast.server.dashboard.site import PageRequest

CHART_TIME_RANGES_H: Final[Mapping[str, float]] = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}
DEFAULT_TIME_RANGE: Final = "1h"
TIME_RANGE_COOKIE: Final = "holdfast_span"  # the last preset; the script of the page sets it
MIN_TIME_RANGE: Final = timedelta(minutes=5)
MAX_TIME_RANGE: Final = timedelta(days=35)  # as long as samples are kept
COMPARISON_OFFSET: Final = timedelta(days=1)


@dataclass(frozen=True)
class TimeRange:
    """A time range. `name` is the preset, or an empty text for chosen times.

    `query` are the parameters that keep the range and the comparison in links of the page.
    """

    name: str
    start: datetime
    end: datetime
    is_compared: bool
    query: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def presets(self) -> list[str]:
        return list(CHART_TIME_RANGES_H)

    @property
    def input_values(self) -> tuple[str, str]:
        """The values of two inputs of the type datetime-local, in UTC."""
        return f"{self.start:%Y-%m-%dT%H:%M}", f"{self.end:%Y-%m-%dT%H:%M}"


def parse_time_range(request: PageRequest) -> TimeRange:
    """Return the time range that the query names, or the default. Invalid times are ignored."""
    compare = {"compare": "day"} if request.query.get("compare") == "day" else {}
    start, end = _parse_time(request.query.get("from")), _parse_time(request.query.get("until"))
    if start and end and start < end:
        end = max(end, start + MIN_TIME_RANGE)
        start = max(start, end - MAX_TIME_RANGE)
        query = {"from": start.isoformat(), "until": end.isoformat(), **compare}
        return TimeRange("", start, end, bool(compare), query)
    name = request.query.get("span") or request.cookies.get(TIME_RANGE_COOKIE, "")
    name = name if name in CHART_TIME_RANGES_H else DEFAULT_TIME_RANGE
    start = request.now - timedelta(hours=CHART_TIME_RANGES_H[name])
    return TimeRange(name, start, request.now, bool(compare), {"span": name, **compare})


def _parse_time(text: str | None) -> datetime | None:
    """Parse an ISO time. A time without an offset is in UTC."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)


async def load_chart_stats(
    request: PageRequest, time_range: TimeRange, *, queue: str | None = None, task_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the statistics of a time range and, if the reader compares, those of the day before."""
    connection = request.connection
    stats = await overview.get_throughput_range(
        connection, time_range.start, time_range.end, queue=queue, task_type=task_type
    )
    if not time_range.is_compared:
        return stats, None
    before = await overview.get_throughput_range(
        connection,
        time_range.start - COMPARISON_OFFSET,
        time_range.end - COMPARISON_OFFSET,
        queue=queue,
        task_type=task_type,
    )
    return stats, before
