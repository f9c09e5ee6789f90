"""Charts as SVG, drawn on the server without any script.

Each chart also has a table for people who cannot see it. Colours come from the style sheet by class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

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

    @property
    def is_empty(self) -> bool:
        return not any(value for series in self.series for value in series.values)

    @property
    def svg(self) -> Markup:
        return _draw_stacked_bars(self) if self.unit == "count" else _draw_lines(self)

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
    stats: Mapping[str, Any], title: str, series: Sequence[tuple[str, str, str]], *, width: int = CHART_WIDTH
) -> Chart:
    """Build a chart over time from the statistics of queues or task types.

    `series` are (name, style, column). Columns that start with `wait` or `run_` are durations in seconds.
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
    )


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
    )


def _draw_time_labels(chart: Chart) -> Iterator[Markup]:
    count = len(chart.times)
    is_short = chart.times[-1] - chart.times[0] < timedelta(hours=30)
    for n in sorted({0, count // 4, count // 2, 3 * count // 4}):
        x = LEFT_MARGIN + (chart.width - LEFT_MARGIN) * n / max(count, 1)
        text = f"{chart.times[n]:%H:%M}" if is_short else f"{chart.times[n]:%b %d}"
        anchor = "start" if n == 0 else "middle"
        yield render_svg_element("text", text, class_="axis", x=x, y=CHART_HEIGHT - 4, text_anchor=anchor)


def _draw_stacked_bars(chart: Chart) -> Markup:
    totals = [sum(series.values[n] or 0 for series in chart.series) for n in range(len(chart.times))]
    max_value = _round_up_axis_maximum(max([*totals, 1]))
    step = (chart.width - LEFT_MARGIN) / max(len(chart.times), 1)
    bars: list[Markup] = []
    for n, at in enumerate(chart.times):
        y = float(TOP_MARGIN + PLOT_HEIGHT_PX)
        for series in chart.series:
            value = series.values[n] or 0
            if value <= 0:
                continue
            height = max(PLOT_HEIGHT_PX * value / max_value, 1)
            y -= height
            title = render_svg_element("title", f"{at:%H:%M} · {series.name} {format_compact_number(value)}")
            x = LEFT_MARGIN + (n + 0.12) * step
            bars.append(
                render_svg_element(
                    "rect", title, class_=series.style, x=x, y=y, width=step * 0.76, height=height
                )
            )
    return _draw_axes(chart, max_value, Markup("").join(bars))


def _draw_lines(chart: Chart) -> Markup:
    max_value = _round_up_axis_maximum(
        max([value or 0 for series in chart.series for value in series.values] + [0.001])
    )
    step = (chart.width - LEFT_MARGIN) / max(len(chart.times), 1)
    elements: list[Markup] = []
    for series in chart.series:
        path, is_drawing = "", False
        for n, value in enumerate(series.values):
            if value is None:
                is_drawing = False
                continue
            x = LEFT_MARGIN + (n + 0.5) * step
            y = TOP_MARGIN + PLOT_HEIGHT_PX * (1 - value / max_value)
            path += f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}"
            is_drawing = True
            title = render_svg_element(
                "title", f"{chart.times[n]:%H:%M} · {series.name} {format_duration(value)}"
            )
            elements.append(
                render_svg_element("circle", title, class_=f"{series.style} point", cx=x, cy=y, r=2)
            )
        elements.append(render_svg_element("path", class_=f"{series.style} line", d=path))
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
