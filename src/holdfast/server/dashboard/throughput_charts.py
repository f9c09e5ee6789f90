"""The charts of the overview, of queues and of task types: throughput, wait times and backlog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.server.dashboard import charts

Row = Mapping[str, Any]


def build_overview_charts(stats: Row, day_before: Row | None = None) -> dict[str, charts.Chart]:
    """Build the charts of the overview from the statistics of one database or of all shards."""
    return {
        "throughput_chart": build_throughput_chart(stats, day_before),
        "wait_chart": build_wait_chart(stats, day_before),
        "backlog_chart": charts.build_chart(
            stats,
            "Backlog",
            [("ready", "pale", "ready"), ("running", "active", "running")],
            width=charts.WIDE_CHART_WIDTH_PX,
            day_before=day_before,
        ),
    }


def build_throughput_chart(stats: Row, day_before: Row | None = None) -> charts.Chart:
    """Build the chart of finished tasks over time, by outcome."""
    return charts.build_chart(
        stats,
        "Throughput",
        [
            ("succeeded", "success", "succeeded"),
            ("failed", "danger", "failed"),
            ("cancelled", "muted", "cancelled"),
        ],
        day_before=day_before,
    )


def build_wait_chart(stats: Row, day_before: Row | None = None) -> charts.Chart:
    """Build the chart of wait times of tasks: from due to started."""
    series = [("p50", "p50", "wait_p50"), ("p95", "p95", "wait_p95")]
    return charts.build_chart(stats, "Wait time", series, day_before=day_before)
