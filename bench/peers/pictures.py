"""The pictures of the page, drawn here as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.peers.report import known
from bench.peers.results import Measurements

COLOURS = ("#1f4e79", "#c55a11", "#548235", "#7f6000", "#7030a0", "#c00000", "#2e9ca6", "#8497b0", "#d65db1",
           "#333333", "#8a8a00")  # fmt: skip
LEFT, TOP, WIDTH, HEIGHT, NAMES = 70, 20, 560, 400, 190
Point = tuple[float, float]


def _head(width: float, height: float, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]


def bars(results: Mapping[str, Measurements]) -> str:
    """Two for each peer, as long as its rates."""
    columns = ("drain, 1 process", "drain, 2 processes")
    rates = {name: [_rate(result, column) for column in columns] for name, result in results.items()}
    order = sorted(rates, key=lambda name: -rates[name][0])
    maximum = max((rate for each in rates.values() for rate in each), default=1.0) or 1.0
    row, left, width = 34, 130, 520
    title = "Jobs a second, drained by one (dark) and by two processes (light)"
    parts = _head(left + width + 90, row * len(order) + 40, title)
    for index, name in enumerate(order):
        top = 10 + index * row
        parts.append(f'<text x="{left - 8}" y="{top + 18}" text-anchor="end"{_weight(name)}>{name}</text>')
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


def _rate(result: Measurements, column: str) -> float:
    value = known(result.get(column))
    return 0.0 if math.isnan(value) else value


def _weight(name: str) -> str:
    return ' font-weight="bold"' if name == "holdfast" else ""


def lines(results: Mapping[str, Measurements]) -> str:
    """One for each peer: how its rate changes with what waits.

    Both axes are logarithmic, so a fall by half is as long for the slow as for the quick.
    """
    curves = {name: _points(result) for name, result in results.items()}
    curves = {name: curve for name, curve in curves.items() if curve}
    parts = _head(LEFT + WIDTH + NAMES, TOP + HEIGHT + 50, "Jobs a second of one process, by how many wait")
    if not curves:
        return "\n".join([*parts, "</svg>", ""])
    across = _Scale([x for curve in curves.values() for x, _ in curve], LEFT, LEFT + WIDTH)
    up = _Scale([y for curve in curves.values() for _, y in curve], TOP + HEIGHT, TOP)
    parts += _grid(across, up)
    ends = _apart({name: up.at(curve[-1][1]) for name, curve in curves.items()})
    for number, (name, curve) in reversed(list(enumerate(curves.items()))):  # the first on top
        drawn = [(across.at(x), up.at(y)) for x, y in curve]
        parts += _curve(name, drawn, COLOURS[number % len(COLOURS)])
        parts += _name(name, curve[-1][1], drawn[-1], ends[name], COLOURS[number % len(COLOURS)])
    return "\n".join([*parts, "</svg>", ""])


def _points(result: Measurements) -> list[Point]:
    measurements = [(float(size.replace(",", "")), known(rate)) for size, rate in result.items()]
    return sorted((size, rate) for size, rate in measurements if rate > 0)


class _Scale:
    """Powers of ten that hold all values, between two places of the picture."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.high = max(self.high, self.low + 1)
        self.first, self.last = first, last

    def at(self, value: float) -> float:
        return self.first + (self.last - self.first) * (math.log10(value) - self.low) / (self.high - self.low)

    def steps(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _grid(across: _Scale, up: _Scale) -> list[str]:
    parts = []
    for value in across.steps():
        x = across.at(value)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + HEIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{value:,.0f}</text>')
    for value in up.steps():
        y = up.at(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    words = "jobs a second of one process (up), by how many wait (across); both logarithmic"
    return [*parts, f'<text x="{LEFT}" y="{TOP + HEIGHT + 40}" font-size="11">{words}</text>']


def _curve(name: str, drawn: Sequence[Point], colour: str) -> list[str]:
    width = 3.5 if name == "holdfast" else 1.8
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 0.7}" fill="{colour}"/>' for x, y in drawn]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>', *dots]


def _name(name: str, rate: float, end: Point, at: float, colour: str) -> list[str]:
    """To the right of all lines, with a thin line to where the curve ends."""
    x, y = end
    right = LEFT + WIDTH + 24
    return [
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right - 4}" y2="{at:.1f}" stroke="{colour}" stroke-width="0.6"'
        ' stroke-dasharray="2 2"/>',
        f'<text x="{right}" y="{at + 4:.1f}" fill="{colour}"{_weight(name)}>{name} {rate:,.0f}</text>',
    ]


def _apart(requested: Mapping[str, float], gap: float = 15.0) -> dict[str, float]:
    """Places for names near where they belong, none over another."""
    placed: dict[str, float] = {}
    last = -math.inf
    for name in sorted(requested, key=lambda each: requested[each]):
        last = max(requested[name], last + gap)
        placed[name] = last
    below = max(last - (TOP + HEIGHT), 0.0)  # too far down: all go up
    return {name: at - below for name, at in placed.items()}
