"""Charts of ended tasks by queue, task type, worker or owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast.engine import overview
from holdfast.formatting import truncate_text
from holdfast.server.dashboard.charts import CHART_WIDTH, WIDE_CHART_WIDTH_PX, Chart, ChartSeries
from holdfast.server.dashboard.shard_charts import add_up_named_charts
from holdfast.server.dashboard.shard_pages import read_all_shards
from holdfast.server.dashboard.site import PageRequest
from holdfast.server.dashboard.time_ranges import COMPARISON_OFFSET, TimeRange

MAX_SHOWN_NAMES: Final = 8
MAX_NAMES_PER_SHARD: Final = 50  # more than are shown: the most active of all may not be so on each shard
OTHER_NAMES_LABEL: Final = "other"
MAX_LEGEND_NAME_CHARACTERS: Final = 40
OUTCOME_STYLES: Final = {"succeeded": "success", "failed": "danger", "cancelled": "muted"}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class NamedStats:
    """Ended tasks over time by name, and those of the day before if the reader compares."""

    data: Row
    day_before: Row | None
    missing_shards: Sequence[int] = ()

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.data["names"]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per name with its totals and its average run time."""
        return [
            {**row, "ended": count_ended(row), "average_run_s": compute_average_run_s(row)}
            for row in self.data["names"]
        ]


async def load_named_stats(
    request: PageRequest, time_range: TimeRange, kind: overview.SampledKind, name: str | None = None
) -> NamedStats:
    """Return the statistics of a time range by name, or of one name, added up over all shards."""
    offsets = (timedelta(0), COMPARISON_OFFSET) if time_range.is_compared else (timedelta(0),)

    async def load(own: PageRequest, max_names: int = MAX_NAMES_PER_SHARD) -> list[Row]:
        return [
            await overview.get_throughput_by_name(
                own.connection,
                kind,
                time_range.start - offset,
                time_range.end - offset,
                name=name,
                max_names=max_names,
            )
            for offset in offsets
        ]

    if not request.site.shard_sites:
        return _build_named_stats(await load(request, MAX_SHOWN_NAMES))
    answers, missing = await read_all_shards(request, load)
    charts = [add_up_named_charts(each, MAX_SHOWN_NAMES) for each in zip(*answers.values(), strict=True)]
    return _build_named_stats(charts, missing)


def _build_named_stats(charts: Sequence[Row], missing_shards: Sequence[int] = ()) -> NamedStats:
    return NamedStats(charts[0], charts[1] if len(charts) > 1 else None, missing_shards)


def count_ended(row: Row) -> int:
    return sum(row[outcome] for outcome in OUTCOME_STYLES)


def compute_average_run_s(row: Row) -> float | None:
    """Return the average run time. It is unknown where nothing ended, and for samples without run times."""
    ended = count_ended(row)
    return row["run_s"] / ended if ended and row["run_s"] is not None else None


def build_outcome_chart(stats: NamedStats) -> Chart:
    """Build the throughput of all names together, by outcome."""
    sums = _sum_by_time(stats.data["points"])
    times = _list_times(stats.data)
    series = [
        ChartSeries(outcome, style, [sums.get(at, {}).get(outcome, 0) for at in times])
        for outcome, style in OUTCOME_STYLES.items()
    ]
    return Chart("Throughput", times, series, comparison=_build_count_comparison(stats, times))


def build_throughput_chart_by_name(stats: NamedStats, title: str) -> Chart:
    """Build the throughput as stacked bars, with one colour for each name."""
    times = _list_times(stats.data)
    series = _build_series(stats, times, lambda row: count_ended(row) if row else 0)
    comparison = _build_count_comparison(stats, times)
    return Chart(title, times, series, width=WIDE_CHART_WIDTH_PX, comparison=comparison)


def build_run_time_chart(stats: NamedStats, *, is_wide: bool = False) -> Chart:
    """Build the average run time of the tasks that ended, as one line for each name."""
    times = _list_times(stats.data)
    series = _build_series(stats, times, lambda row: compute_average_run_s(row) if row else None)
    return Chart(
        "Average run time", times, series, "seconds", WIDE_CHART_WIDTH_PX if is_wide else CHART_WIDTH
    )


def _build_series(
    stats: NamedStats, times: Sequence[datetime], compute: Callable[[Row | None], float | None]
) -> list[ChartSeries]:
    points = {(datetime.fromisoformat(row["at"]), row["name"]): row for row in stats.data["points"]}
    return [
        ChartSeries(
            truncate_text(name, MAX_LEGEND_NAME_CHARACTERS) or OTHER_NAMES_LABEL,
            f"series-{number}" if name else "neutral",
            [compute(points.get((at, name))) for at in times],
        )
        for number, name in enumerate(stats.names, start=1)
    ]


def _list_times(data: Row) -> list[datetime]:
    start, end = datetime.fromisoformat(data["from"]).astimezone(UTC), datetime.fromisoformat(data["until"])
    step = timedelta(seconds=data["step_s"])
    return [start + number * step for number in range(round((end - start) / step))]


def _sum_by_time(points: Sequence[Row]) -> dict[datetime, dict[str, int]]:
    sums: dict[datetime, dict[str, int]] = {}
    for row in points:
        total = sums.setdefault(datetime.fromisoformat(row["at"]), dict.fromkeys(OUTCOME_STYLES, 0))
        for outcome in OUTCOME_STYLES:
            total[outcome] += row[outcome]
    return sums


def _build_count_comparison(stats: NamedStats, times: Sequence[datetime]) -> ChartSeries | None:
    if stats.day_before is None:
        return None
    sums = _sum_by_time(stats.day_before["points"])
    values = [sum(sums.get(at - COMPARISON_OFFSET, {}).values()) for at in times]
    return ChartSeries("day before", "before", values)
