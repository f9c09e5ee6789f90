"""Charts of all shards together: counts are added up, and quantiles come from the added histograms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.engine import overview
from holdfast.server.dashboard.site import PageRequest
from holdfast.server.dashboard.time_ranges import COMPARISON_OFFSET, TimeRange

Row = Mapping[str, Any]
_OUTCOMES: Final = ("succeeded", "failed", "cancelled")
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95}


async def load_shard_charts(request: PageRequest, time_range: TimeRange) -> list[Row]:
    """Return the statistics of one shard with histograms and, if the reader compares, of the day before."""
    connection = request.connection
    charts: list[Row] = []
    for offset in (timedelta(0), COMPARISON_OFFSET) if time_range.is_compared else (timedelta(0),):
        start, end = time_range.start - offset, time_range.end - offset
        stats = await overview.get_throughput_range(connection, start, end)
        charts.append(
            {**stats, "histograms": await overview.get_throughput_histograms(connection, start, end)}
        )
    return charts


def add_up_charts(charts: Sequence[Row]) -> dict[str, Any]:
    """Add up the statistics of several shards for the same period.

    The backlog of an interval is the sum of the maxima of the shards, which may be at different moments.
    """
    counts = _add_up_by_time((row for chart in charts for row in chart["points"]), _OUTCOMES)
    histograms = _add_up_histograms(row for chart in charts for row in chart["histograms"])
    depths = _add_up_by_time((row for chart in charts for row in chart["depths"]), ("ready", "running"))
    return {
        **charts[0],
        "points": [
            {"at": at.isoformat(), **row, **_compute_quantiles(histograms.get(at, {}))}
            for at, row in counts.items()
        ],
        "depths": [{"at": at.isoformat(), **row} for at, row in depths.items()],
    }


def add_up_named_charts(charts: Sequence[Row], max_names: int) -> dict[str, Any]:
    """Add up the statistics by name of several shards. Names beyond `max_names` get the empty name."""
    names = _add_up_by_name(row for chart in charts for row in chart["names"])
    names.sort(key=lambda row: (row["name"] == "", -sum(row[outcome] for outcome in _OUTCOMES), row["name"]))
    shown = {row["name"] for row in names[:max_names]}

    def rename(row: Row) -> Row:
        return row if row["name"] in shown else {**row, "name": ""}

    points: dict[datetime, list[Row]] = {}
    for row in (row for chart in charts for row in chart["points"]):
        points.setdefault(datetime.fromisoformat(row["at"]), []).append(rename(row))
    return {
        **charts[0],
        "names": _add_up_by_name(map(rename, names)),
        "points": [
            {**row, "at": at.isoformat()} for at in sorted(points) for row in _add_up_by_name(points[at])
        ],
    }


def compute_histogram_quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the duration in seconds below which a share of the values lies, as the SQL function does."""
    total, below = sum(counts), 0
    for number, count in enumerate(counts):
        if count and below + count >= share * total:
            return math.pow(2, number - 1 + (share * total - below) / count) / 1000
        below += count
    return None


def _add_up_by_time(rows: Iterable[Row], columns: Sequence[str]) -> dict[datetime, dict[str, int]]:
    sums: dict[datetime, dict[str, int]] = {}
    for row in rows:
        total = sums.setdefault(datetime.fromisoformat(row["at"]), dict.fromkeys(columns, 0))
        for column in columns:
            total[column] += row[column]
    return dict(sorted(sums.items()))


def _add_up_histograms(rows: Iterable[Row]) -> dict[datetime, dict[str, list[int]]]:
    sums: dict[datetime, dict[str, list[int]]] = {}
    for row in rows:
        total = sums.setdefault(datetime.fromisoformat(row["at"]), {})
        for name in ("wait", "run"):
            total[name] = [
                a + b for a, b in zip(total.get(name) or [0] * len(row[name]), row[name], strict=True)
            ]
    return sums


def _compute_quantiles(histograms: Mapping[str, Sequence[int]]) -> dict[str, float | None]:
    return {
        f"{name}_{label}": compute_histogram_quantile(counts, share)
        for name, counts in histograms.items()
        for label, share in _QUANTILES.items()
    }


def _add_up_by_name(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Add up rows of the same name, in the order of their first row. Run times are None if none is known."""
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = sums.setdefault(
            row["name"], {"name": row["name"], **dict.fromkeys(_OUTCOMES, 0), "run_s": None}
        )
        for outcome in _OUTCOMES:
            total[outcome] += row[outcome]
        if row["run_s"] is not None:
            total["run_s"] = (total["run_s"] or 0) + row["run_s"]
    return list(sums.values())
