"""Draw the charts of the benchmark page as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.peers.report import to_number
from bench.peers.results import Measurements

LINE_COLOURS = ("#1f4e79", "#c55a11", "#548235", "#7f6000", "#7030a0", "#c00000", "#2e9ca6", "#8497b0",
           "#d65db1", "#333333", "#8a8a00")  # fmt: skip
PLOT_LEFT, PLOT_TOP, PLOT_WIDTH, PLOT_HEIGHT, LABELS_WIDTH = 70, 20, 560, 400, 190
Point = tuple[float, float]


def _build_svg_header(width: float, height: float, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]


def draw_drain_bars(results: Mapping[str, Measurements]) -> str:
    """Draw two bars per peer: the drain rates of one and of two processes."""
    columns = ("drain, 1 process", "drain, 2 processes")
    rates = {name: [_get_rate(result, column) for column in columns] for name, result in results.items()}
    order = sorted(rates, key=lambda name: -rates[name][0])
    maximum = max((rate for pair in rates.values() for rate in pair), default=1.0) or 1.0
    row, left, width = 34, 130, 520
    title = "Jobs a second, drained by one (dark) and by two processes (light)"
    parts = _build_svg_header(left + width + 90, row * len(order) + 40, title)
    for index, name in enumerate(order):
        top = 10 + index * row
        parts.append(
            f'<text x="{left - 8}" y="{top + 18}" text-anchor="end"{_format_font_weight(name)}>{name}</text>'
        )
        for number, (rate, colour) in enumerate(zip(rates[name], ("#1f4e79", "#9dc3e6"), strict=True)):
            long = max(1.0, width * rate / maximum)
            at = top + number * 13
            parts.append(f'<rect x="{left}" y="{at}" width="{long:.1f}" height="12" fill="{colour}"/>')
            parts.append(f'<text x="{left + long + 5:.1f}" y="{at + 10}" font-size="10">{rate:,.0f}</text>')
    legend = row * len(order) + 28
    parts.append(
        f'<text x="{left}" y="{legend}" font-size="11">jobs a second; dark: one process, light: two</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _get_rate(result: Measurements, column: str) -> float:
    value = to_number(result.get(column))
    return 0.0 if math.isnan(value) else value


def _format_font_weight(name: str) -> str:
    return ' font-weight="bold"' if name == "holdfast" else ""


def draw_growth_lines(results: Mapping[str, Measurements]) -> str:
    """Draw one line per peer: its rate by the number of waiting jobs.

    Both axes are logarithmic, so that a drop by half looks the same for slow and fast peers.
    """
    curves = {name: _list_points(result) for name, result in results.items()}
    curves = {name: curve for name, curve in curves.items() if curve}
    parts = _build_svg_header(
        PLOT_LEFT + PLOT_WIDTH + LABELS_WIDTH,
        PLOT_TOP + PLOT_HEIGHT + 50,
        "Jobs a second of one process, by how many wait",
    )
    if not curves:
        return "\n".join([*parts, "</svg>", ""])
    across = _LogScale([x for curve in curves.values() for x, _ in curve], PLOT_LEFT, PLOT_LEFT + PLOT_WIDTH)
    up = _LogScale([y for curve in curves.values() for _, y in curve], PLOT_TOP + PLOT_HEIGHT, PLOT_TOP)
    parts += _draw_grid(across, up)
    ends = _spread_labels({name: up.get_position(curve[-1][1]) for name, curve in curves.items()})
    for number, (name, curve) in reversed(list(enumerate(curves.items()))):  # the first on top
        points = [(across.get_position(x), up.get_position(y)) for x, y in curve]
        parts += _draw_curve(name, points, LINE_COLOURS[number % len(LINE_COLOURS)])
        parts += _draw_label(
            name, curve[-1][1], points[-1], ends[name], LINE_COLOURS[number % len(LINE_COLOURS)]
        )
    return "\n".join([*parts, "</svg>", ""])


def _list_points(result: Measurements) -> list[Point]:
    points = [(float(size.replace(",", "")), to_number(rate)) for size, rate in result.items()]
    return sorted((size, rate) for size, rate in points if rate > 0)


class _LogScale:
    """A logarithmic axis: maps values to positions between `first` and `last`."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.high = max(self.high, self.low + 1)
        self.first, self.last = first, last

    def get_position(self, value: float) -> float:
        return self.first + (self.last - self.first) * (math.log10(value) - self.low) / (self.high - self.low)

    def list_powers_of_ten(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _draw_grid(across: _LogScale, up: _LogScale) -> list[str]:
    parts = []
    for value in across.list_powers_of_ten():
        x = across.get_position(value)
        parts.append(
            f'<line x1="{x:.1f}" y1="{PLOT_TOP}" x2="{x:.1f}" y2="{PLOT_TOP + PLOT_HEIGHT}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{PLOT_TOP + PLOT_HEIGHT + 18}" text-anchor="middle">{value:,.0f}</text>'
        )
    for value in up.list_powers_of_ten():
        y = up.get_position(value)
        parts.append(
            f'<line x1="{PLOT_LEFT}" y1="{y:.1f}" x2="{PLOT_LEFT + PLOT_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{PLOT_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    words = "jobs a second of one process (up), by how many wait (across); both logarithmic"
    return [*parts, f'<text x="{PLOT_LEFT}" y="{PLOT_TOP + PLOT_HEIGHT + 40}" font-size="11">{words}</text>']


def _draw_curve(name: str, points: Sequence[Point], colour: str) -> list[str]:
    width = 3.5 if name == "holdfast" else 1.8
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 0.7}" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>', *dots]


def _draw_label(name: str, rate: float, end: Point, at: float, colour: str) -> list[str]:
    """Draw the name of a peer right of the plot, with a thin line to the end of its curve."""
    x, y = end
    right = PLOT_LEFT + PLOT_WIDTH + 24
    return [
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right - 4}" y2="{at:.1f}" stroke="{colour}" stroke-width="0.6"'
        ' stroke-dasharray="2 2"/>',
        f'<text x="{right}" y="{at + 4:.1f}" fill="{colour}"{_format_font_weight(name)}>'
        f"{name} {rate:,.0f}</text>",
    ]


def _spread_labels(requested: Mapping[str, float], gap: float = 15.0) -> dict[str, float]:
    """Return a position for each label, near the requested one and without overlap."""
    placed: dict[str, float] = {}
    last = -math.inf
    for name in sorted(requested, key=lambda name: requested[name]):
        last = max(requested[name], last + gap)
        placed[name] = last
    below = max(last - (PLOT_TOP + PLOT_HEIGHT), 0.0)  # beyond the plot: move all labels up
    return {name: at - below for name, at in placed.items()}
