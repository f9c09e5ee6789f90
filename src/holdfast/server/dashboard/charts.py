"""Charts as SVG, drawn on the server without any script.

Each chart also has a table for people who cannot see it. Colours come from the style sheet by class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from markupsafe import Markup

from holdfast.formatting import parse_iso_time_or_none
from holdfast.server.dashboard.filters import MISSING_VALUE_TEXT, format_compact_number, format_duration
from holdfast.server.dashboard.svg import render_svg_element

CHART_WIDTH, CHART_HEIGHT = 640, 176
WIDE_CHART_WIDTH_PX = 1320
LEFT_MARGIN, BOTTOM_MARGIN, TOP_MARGIN = 52, 26, 10
PLOT_HEIGHT_PX = CHART_HEIGHT - BOTTOM_MARGIN - TOP_MARGIN


@dataclass(frozen=True)
class ChartSeries:
    """One data series of a chart. `values` has one entry per point in time; None means unknown."""

    name: str
    style: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """A chart over time: stacked bars for counts, lines for durations in seconds."""

    title: str
    times: Sequence[datetime]
    series: Sequence[ChartSeries]
    unit: Literal["count", "seconds"] = "count"
    width: int = CHART_WIDTH
    comparison: ChartSeries | None = None

    @property
    def is_empty(self) -> bool:
        return not any(value for series in self.series for value in series.values)

    @property
    def svg(self) -> Markup:
        return _draw_stacked_bars(self) if self.unit == "count" else _draw_lines(self)

    @property
    def hover_points(self) -> str:
        """The time and the values of each point as JSON, for the script that shows them under the pointer."""
        step = self.times[1] - self.times[0] if len(self.times) > 1 else timedelta(minutes=1)
        shown = [*self.series, *([self.comparison] if self.comparison else [])]
        points = [
            {
                "at": at.isoformat(),
                "until": (at + step).isoformat(),
                "values": [f"{series.name} {self.format_value(series.values[n])}" for series in shown],
            }
            for n, at in enumerate(self.times)
        ]
        return msgspec.json.encode(points).decode()

    @property
    def table_rows(self) -> list[tuple[str, list[str]]]:
        """The values of the chart as text: one row per point in time that has values."""
        return [
            (f"{at:%Y-%m-%d %H:%M}", [self.format_value(series.values[n]) for series in self.series])
            for n, at in enumerate(self.times)
            if any(series.values[n] for series in self.series)
        ]

    def format_value(self, value: float | None) -> str:
        return format_compact_number(value) if self.unit == "count" else format_duration(value)


def build_chart(
    stats: Mapping[str, Any],
    title: str,
    series: Sequence[tuple[str, str, str]],
    *,
    width: int = CHART_WIDTH,
    day_before: Mapping[str, Any] | None = None,
) -> Chart:
    """Build a chart over time from the statistics of queues or task types.

    `series` are (name, style, column). Columns that start with `wait` or `run_` are durations in seconds.
    `day_before` are the statistics of the same time a day earlier, which are drawn as a dashed line.
    """
    start, end = parse_iso_time_or_none(stats["from"]), parse_iso_time_or_none(stats["until"])
    if start is None or end is None:
        return Chart(title, [], [])
    step = timedelta(seconds=stats["step_s"])
    times = [start.astimezone(UTC) + n * step for n in range(round((end - start) / step))]
    rows = stats["depths" if series[0][2] in {"ready", "running"} else "points"]
    points = {parse_iso_time_or_none(row["at"]): row for row in rows}
    is_duration = series[0][2].startswith(("wait", "run_"))
    return Chart(
        title,
        times,
        [
            ChartSeries(name, style, [_get_value_or_gap(points.get(at), column, is_duration) for at in times])
            for name, style, column in series
        ],
        "seconds" if is_duration else "count",
        width,
        _build_comparison(day_before, times, [column for _, _, column in series], is_duration),
    )


def _build_comparison(
    stats: Mapping[str, Any] | None, times: Sequence[datetime], columns: Sequence[str], is_duration: bool
) -> ChartSeries | None:
    """Build the line of the day before: the sum of counts, or the last column of durations."""
    if stats is None:
        return None
    rows = stats["depths" if columns[0] in {"ready", "running"} else "points"]
    points = {parse_iso_time_or_none(row["at"]): row for row in rows}
    values: list[float | None] = []
    for at in times:
        point = points.get(at - timedelta(days=1))
        if is_duration:
            values.append(point.get(columns[-1]) if point else None)
        else:
            values.append(sum(point.get(column) or 0 for column in columns) if point else 0)
    return ChartSeries("day before", "before", values)


def _get_value_or_gap(point: Mapping[str, Any] | None, column: str, is_duration: bool) -> float | None:
    return point.get(column) if point is not None else None if is_duration else 0


def _round_up_axis_maximum(value: float) -> float:
    """Round the maximum of an axis up to 1, 2, 5, 10, 20 and so on."""
    size = 1.0 if value >= 1 else 0.001
    while size * 10 < value:
        size *= 10
    return next(size * step for step in (1, 2, 5, 10, 100) if size * step >= value)


def _draw_axes(chart: Chart, max_value: float, plot: Markup) -> Markup:
    elements: list[Markup] = []
    for share in (0, 0.5, 1):
        y = TOP_MARGIN + PLOT_HEIGHT_PX * (1 - share)
        elements.append(render_svg_element("line", class_="grid", x1=LEFT_MARGIN, x2=chart.width, y1=y, y2=y))
        label = chart.format_value(max_value * share)
        elements.append(
            render_svg_element("text", label, class_="axis", x=LEFT_MARGIN - 6, y=y + 3.5, text_anchor="end")
        )
    elements += _draw_time_labels(chart)
    return render_svg_element(
        "svg",
        *elements,
        plot,
        class_="chart",
        viewBox=f"0 0 {chart.width} {CHART_HEIGHT}",
        role="img",
        aria_label=chart.title,
        data_points=chart.hover_points,
        data_left=LEFT_MARGIN,
    )


def _draw_time_labels(chart: Chart) -> Iterator[Markup]:
    count = len(chart.times)
    is_short = chart.times[-1] - chart.times[0] < timedelta(hours=30)
    for n in sorted({0, count // 4, count // 2, 3 * count // 4}):
        x = LEFT_MARGIN + (chart.width - LEFT_MARGIN) * n / max(count, 1)
        text = f"{chart.times[n]:%H:%M}" if is_short else f"{chart.times[n]:%b %d}"
        anchor = "start" if n == 0 else "middle"
        at: dict[str, str | bool] = {}
        if is_short:
            at = {"datetime": chart.times[n].isoformat(), "data_clock": True}
        yield render_svg_element(
            "text", text, class_="axis", x=x, y=CHART_HEIGHT - 4, text_anchor=anchor, **at
        )


def _draw_stacked_bars(chart: Chart) -> Markup:
    totals = [sum(series.values[n] or 0 for series in chart.series) for n in range(len(chart.times))]
    compared = [value or 0 for value in chart.comparison.values] if chart.comparison else []
    max_value = _round_up_axis_maximum(max([*totals, *compared, 1]))
    step = (chart.width - LEFT_MARGIN) / max(len(chart.times), 1)
    bars: list[Markup] = []
    for n in range(len(chart.times)):
        y = float(TOP_MARGIN + PLOT_HEIGHT_PX)
        for series in chart.series:
            value = series.values[n] or 0
            if value <= 0:
                continue
            height = max(PLOT_HEIGHT_PX * value / max_value, 1)
            y -= height
            x = LEFT_MARGIN + (n + 0.12) * step
            bars.append(
                render_svg_element("rect", class_=series.style, x=x, y=y, width=step * 0.76, height=height)
            )
    bars += _draw_comparison(chart, max_value)
    return _draw_axes(chart, max_value, Markup("").join(bars))


def _draw_comparison(chart: Chart, max_value: float) -> Iterator[Markup]:
    if chart.comparison:
        path = _build_line_path(chart, chart.comparison.values, max_value)
        yield render_svg_element("path", class_="before line", d=path)


def _build_line_path(chart: Chart, values: Sequence[float | None], max_value: float) -> str:
    """Build the path of a line. It has a gap where a value is unknown."""
    step = (chart.width - LEFT_MARGIN) / max(len(chart.times), 1)
    path, is_drawing = "", False
    for n, value in enumerate(values):
        if value is not None:
            y = TOP_MARGIN + PLOT_HEIGHT_PX * (1 - value / max_value)
            path += f"{'L' if is_drawing else 'M'}{LEFT_MARGIN + (n + 0.5) * step:.1f} {y:.1f}"
        is_drawing = value is not None
    return path


def _draw_lines(chart: Chart) -> Markup:
    shown = [*chart.series, *([chart.comparison] if chart.comparison else [])]
    max_value = _round_up_axis_maximum(
        max([value or 0 for series in shown for value in series.values] + [0.001])
    )
    step = (chart.width - LEFT_MARGIN) / max(len(chart.times), 1)
    elements: list[Markup] = []
    for series in chart.series:
        for n, value in enumerate(series.values):
            if value is not None:
                x = LEFT_MARGIN + (n + 0.5) * step
                y = TOP_MARGIN + PLOT_HEIGHT_PX * (1 - value / max_value)
                elements.append(render_svg_element("circle", class_=f"{series.style} point", cx=x, cy=y, r=2))
        path = _build_line_path(chart, series.values, max_value)
        elements.append(render_svg_element("path", class_=f"{series.style} line", d=path))
    elements += _draw_comparison(chart, max_value)
    return _draw_axes(chart, max_value, Markup("").join(elements))


def draw_sparkline(values: Sequence[float], style: str = "success", title: str = "") -> Markup:
    """Draw a small bar chart of counts over time as SVG, for a table cell."""
    if not values or not any(values):
        return Markup('<span class="muted">{}</span>').format(MISSING_VALUE_TEXT)
    max_value = max(values)
    heights = [max(15 * value / max_value, 1) if value else 0.5 for value in values]
    bars = [
        render_svg_element("rect", x=n * 5, y=16 - height, width=4, height=height)
        for n, height in enumerate(heights)
    ]
    return render_svg_element(
        "svg",
        *bars,
        class_=f"sparkline {style}",
        viewBox=f"0 0 {len(values) * 5} 16",
        role="img",
        aria_label=title or "Trend",
    )


def draw_progress_bar(share: float | None, label: str, style: str = "active") -> Markup:
    """Draw a progress bar as SVG. `share` is between 0 and 1."""
    width = min(max(share or 0, 0), 1) * 100
    return render_svg_element(
        "svg",
        render_svg_element("rect", class_="track", width=100, height=6),
        render_svg_element("rect", class_="fill", width=width, height=6),
        class_=f"progress-bar {style}",
        viewBox="0 0 100 6",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
