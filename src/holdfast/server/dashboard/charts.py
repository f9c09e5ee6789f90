"""Charts as SVG, drawn on the server: no script, no library, the same for everybody.

Each chart has a table twin for those who cannot see it; colours come from the style sheet by class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from holdfast.server.dashboard.svg import tag
from holdfast.server.dashboard.words import NONE, compact, moment, seconds

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 176, 52, 26, 10


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
    marks: list[Markup] = []
    for share in (0, 0.5, 1):
        y = TOP + inner * (1 - share)
        marks.append(tag("line", class_="grid", x1=LEFT, x2=chart.width, y1=y, y2=y))
        marks.append(tag("text", shown(top * share), class_="axis", x=LEFT - 6, y=y + 3.5, text_anchor="end"))
    marks += _times(chart)
    return tag(
        "svg",
        *marks,
        body,
        class_="chart",
        viewBox=f"0 0 {chart.width} {HEIGHT}",
        role="img",
        aria_label=chart.title,
    )


def _times(chart: Chart) -> Iterator[Markup]:
    count = len(chart.times)
    within_days = chart.times[-1] - chart.times[0] < timedelta(hours=30)
    for n in sorted({0, count // 4, count // 2, 3 * count // 4}):
        x = LEFT + (chart.width - LEFT) * n / max(count, 1)
        text = f"{chart.times[n]:%H:%M}" if within_days else f"{chart.times[n]:%b %d}"
        anchor = "start" if n == 0 else "middle"
        yield tag("text", text, class_="axis", x=x, y=HEIGHT - 4, text_anchor=anchor)


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
            title = tag("title", f"{at:%H:%M} · {one.name} {compact(value)}")
            x = LEFT + (n + 0.12) * step
            bars.append(tag("rect", title, class_=one.style, x=x, y=y, width=step * 0.76, height=tall))
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
            title = tag("title", f"{chart.times[n]:%H:%M} · {one.name} {seconds(value)}")
            drawn.append(tag("circle", title, class_=f"{one.style} point", cx=x, cy=y, r=2))
        drawn.append(tag("path", class_=f"{one.style} line", d=path))
    return _frame(chart, top, Markup("").join(drawn))


def spark(values: Sequence[float], style: str = "ok", title: str = "") -> Markup:
    """A tiny bar chart for table cells."""
    if not values or not any(values):
        return Markup('<span class="none">{}</span>').format(NONE)
    top = max(values)
    tall = [max(15 * value / top, 1) if value else 0.5 for value in values]
    bars = [tag("rect", x=n * 5, y=16 - one, width=4, height=one) for n, one in enumerate(tall)]
    box = f"0 0 {len(values) * 5} 16"
    return tag("svg", *bars, class_=f"spark {style}", viewBox=box, role="img", aria_label=title or "trend")


def meter(share: float | None, label: str, style: str = "busy") -> Markup:
    """A bar that is filled so far; `share` from 0 to 1."""
    filled = min(max(share or 0, 0), 1) * 100
    return tag(
        "svg",
        tag("rect", class_="track", width=100, height=6),
        tag("rect", class_="fill", width=filled, height=6),
        class_=f"meter {style}",
        viewBox="0 0 100 6",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
