"""Charts as SVG, drawn on the server: no script, no library, the same for everybody.

Each chart has a table twin for those who cannot see it; colours come from the style sheet by class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from holdfast.dashboard.words import compact, moment, seconds

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 170, 44, 20, 10


@dataclass(frozen=True)
class Series:
    """`values` has one entry per step; None where nothing is known."""

    name: str
    style: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    title: str
    times: Sequence[datetime]
    series: Sequence[Series]
    unit: str = "count"
    width: int = WIDTH

    @property
    def empty(self) -> bool:
        return not any(value for one in self.series for value in one.values)

    @property
    def svg(self) -> Markup:
        return _stacked(self) if self.unit == "count" else _lines(self)

    @property
    def table(self) -> list[tuple[str, list[str]]]:
        shown = compact if self.unit == "count" else seconds
        return [
            (f"{at:%Y-%m-%d %H:%M}", [shown(one.values[n]) for one in self.series])
            for n, at in enumerate(self.times)
            if any(one.values[n] for one in self.series)
        ]


def from_figures(
    figures: Mapping[str, Any], title: str, series: Sequence[tuple[str, str, str]], *, width: int = WIDTH
) -> Chart:
    """`series`: (name, style, field of the points). Field names that begin with wait or run are seconds."""
    begin, until = moment(figures["from"]), moment(figures["until"])
    if begin is None or until is None:
        return Chart(title, [], [])
    step = timedelta(seconds=figures["step_s"])
    times = [begin.astimezone(UTC) + n * step for n in range(round((until - begin) / step))]
    source = figures["depths" if series[0][2] in {"ready", "running"} else "points"]
    points = {moment(point["at"]): point for point in source}
    spans = series[0][2].startswith(("wait", "run_"))
    return Chart(
        title,
        times,
        [
            Series(name, style, [_value(points.get(at), column, spans) for at in times])
            for name, style, column in series
        ],
        "seconds" if spans else "count",
        width,
    )


def _value(point: Mapping[str, Any] | None, column: str, spans: bool) -> float | None:
    return point.get(column) if point is not None else None if spans else 0


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 …, so that the axis has readable marks."""
    size = 1.0 if value >= 1 else 0.001
    while size * 10 < value:
        size *= 10
    return next(size * step for step in (1, 2, 5, 10, 100) if size * step >= value)


def _frame(chart: Chart, top: float, body: Markup) -> Markup:
    shown = compact if chart.unit == "count" else seconds
    inner = HEIGHT - BOTTOM - TOP
    marks = [
        Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, chart.width, y, y)
        + Markup('<text class="axis" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(LEFT - 6, y + 3.5, shown(top * share))
        for share in (0, 0.5, 1)
        for y in [TOP + inner * (1 - share)]
    ]  # fmt: skip
    count = len(chart.times)
    for n in sorted({0, count // 4, count // 2, 3 * count // 4}):
        x = LEFT + (chart.width - LEFT) * n / max(count, 1)
        at = chart.times[n]
        text = f"{at:%H:%M}" if chart.times[-1] - chart.times[0] < timedelta(hours=30) else f"{at:%b %d}"
        anchor = "start" if n == 0 else "middle"
        marks.append(
            Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(x, HEIGHT - 4, anchor, text)
        )  # fmt: skip
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
        chart.width, HEIGHT, chart.title, Markup("").join(marks), body
    )


def _stacked(chart: Chart) -> Markup:
    """Bars, the series on top of each other."""
    sums = [sum(one.values[n] or 0 for one in chart.series) for n in range(len(chart.times))]
    top = _round_up(max([*sums, 1]))
    inner, step = HEIGHT - BOTTOM - TOP, (chart.width - LEFT) / max(len(chart.times), 1)
    bars: list[Markup] = []
    for n, at in enumerate(chart.times):
        y = float(TOP + inner)
        for one in chart.series:
            value = one.values[n] or 0
            if value <= 0:
                continue
            tall = max(inner * value / top, 1)
            y -= tall
            bars.append(
                Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>').format(
                    one.style, LEFT + n * step + step * 0.12, y, step * 0.76, tall,
                    f"{at:%H:%M} · {one.name} {compact(value)}")
            )  # fmt: skip
    return _frame(chart, top, Markup("").join(bars))


def _lines(chart: Chart) -> Markup:
    top = _round_up(max([value or 0 for one in chart.series for value in one.values] + [0.001]))
    inner, step = HEIGHT - BOTTOM - TOP, (chart.width - LEFT) / max(len(chart.times), 1)
    drawn: list[Markup] = []
    for one in chart.series:
        path, pen = "", False
        for n, value in enumerate(one.values):
            if value is None:
                pen = False
                continue
            x, y = LEFT + (n + 0.5) * step, TOP + inner * (1 - value / top)
            path += f"{'L' if pen else 'M'}{x:.1f} {y:.1f}"
            pen = True
            drawn.append(
                Markup('<circle class="{} point" cx="{:.1f}" cy="{:.1f}" r="2"><title>{}</title></circle>').format(
                    one.style, x, y, f"{chart.times[n]:%H:%M} · {one.name} {seconds(value)}")
            )  # fmt: skip
        drawn.append(Markup('<path class="{} line" d="{}"/>').format(one.style, path))
    return _frame(chart, top, Markup("").join(drawn))


def spark(values: Sequence[float], style: str = "ok", title: str = "") -> Markup:
    """A tiny bar chart for table cells."""
    if not values or not any(values):
        return Markup('<span class="none">–</span>')
    top = max(values)
    bars = Markup("").join(
        Markup('<rect x="{}" y="{:.1f}" width="4" height="{:.1f}"/>').format(n * 5, 16 - tall, tall)
        for n, value in enumerate(values)
        for tall in [max(15 * value / top, 1) if value else 0.5]
    )
    return Markup('<svg class="spark {}" viewBox="0 0 {} 16" role="img" aria-label="{}">{}</svg>').format(
        style, len(values) * 5, title or "trend", bars
    )


def meter(share: float | None, label: str, style: str = "busy") -> Markup:
    """A bar that is filled so far; `share` from 0 to 1."""
    filled = min(max(share or 0, 0), 1) * 100
    return Markup(
        '<svg class="meter {}" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="100" height="6"/><rect class="fill" width="{:.1f}" height="6"/></svg>'
    ).format(style, label, filled)
