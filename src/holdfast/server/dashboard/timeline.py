"""The tasks of a job in time and in order, as SVG: a Gantt chart and a graph in layers.

Both are laid out here and only moved in the browser. Beyond `MOST` tasks they show the first ones and say so;
on narrow screens the page shows the list instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from holdfast.server.dashboard.svg import tag
from holdfast.server.dashboard.words import TONES, between, clip, moment, seconds

MOST = 300
ROW, LABEL, WIDTH = 24, 190, 960
NODE_W, NODE_H, GAP_X, GAP_Y = 150, 34, 46, 14

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    begin: datetime
    span: float

    def x(self, at: Any) -> float:
        gone = between(self.begin, at) or 0
        return LABEL + (WIDTH - LABEL - 110) * min(max(gone / self.span, 0), 1)


def gantt(tasks: Sequence[Row], attempts: Sequence[Row], now: datetime) -> Markup:
    """One line per task: waiting pale, running solid, attempts that failed red."""
    shown = sorted(tasks[:MOST], key=lambda t: (str(t["started_at"] or "9"), str(t["due_at"]), t["id"]))
    if not shown:
        return Markup("")
    scale = _scale(shown, attempts, now)
    tried: dict[str, list[Row]] = {}
    for attempt in attempts:
        tried.setdefault(attempt["task_id"], []).append(attempt)
    rows = Markup("").join(
        _line(task, tried.get(task["id"], []), scale, n * ROW + 22, now) for n, task in enumerate(shown)
    )
    height = len(shown) * ROW + 28
    return tag(
        "svg",
        _marks(scale, height),
        rows,
        class_="gantt",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label="Timeline of the tasks",
    )


def _scale(tasks: Sequence[Row], attempts: Sequence[Row], now: datetime) -> Scale:
    begins = [
        at for t in tasks for at in [moment(t["started_at"]) or moment(t["due_at"])] if at and at <= now
    ]
    begins += [at for a in attempts for at in [moment(a["started_at"])] if at]
    ends = [moment(t["finished_at"]) or now for t in tasks if t["started_at"]]
    begin = min(begins, default=now)
    return Scale(begin, max((max(ends, default=now) - begin).total_seconds(), 0.05))


def _marks(scale: Scale, height: int) -> Markup:
    marks: list[Markup] = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = LABEL + (WIDTH - LABEL - 110) * share
        marks.append(tag("line", class_="grid", x1=x, x2=x, y1=16, y2=height))
        marks.append(tag("text", seconds(scale.span * share), class_="axis", x=x, y=10))
    return Markup("").join(marks)


def _line(task: Row, tried: Sequence[Row], scale: Scale, y: int, now: datetime) -> Markup:
    parts = [
        tag("text", clip(task["name"], 28), class_="name", x=0, y=y + 13),
        *_bars(task, scale, y, now),
        *(_failed(one, scale, y) for one in tried if _shows(one)),
        tag("text", _note(task, now), class_="note", x=WIDTH, y=y + 13, text_anchor="end"),
    ]
    return tag("g", *parts, class_="row")


def _shows(attempt: Row) -> bool:
    return attempt["outcome"] not in {"released", "snoozed"} and bool(attempt["started_at"])


def _failed(attempt: Row, scale: Scale, y: int) -> Markup:
    why = f"attempt {attempt['attempt']}: {attempt['error_type'] or attempt['outcome']}"
    return _bar("bad", scale.x(attempt["started_at"]), scale.x(attempt["ended_at"]), y, why)


def _ended(task: Row, now: datetime) -> datetime | None:
    """Until when a task ran, or runs."""
    if not task["started_at"] or task["status"] not in {"running", "succeeded", "cancelled"}:
        return None
    return moment(task["finished_at"]) or (now if task["status"] == "running" else None)


def _bars(task: Row, scale: Scale, y: int, now: datetime) -> Iterator[Markup]:
    ended = _ended(task, now)
    if ended:
        tone = TONES.get(task["status"], ("ring", "idle"))[1]
        yield _bar("pale", scale.x(task["due_at"]), scale.x(task["started_at"]), y, "waiting")
        yield _bar(tone, scale.x(task["started_at"]), scale.x(ended), y, task["status"])
    elif task["status"] in {"ready", "scheduled"}:
        due = min(moment(task["due_at"]) or now, now)
        yield _bar("pale", scale.x(due), scale.x(now), y, "waiting")


def _note(task: Row, now: datetime) -> str:
    if task["status"] == "running" and task["percent"] is not None:
        return f"{task['percent']:.0f}%"
    ended = _ended(task, now)
    return seconds(between(task["started_at"], ended)) if ended else str(task["status"])


def _bar(style: str, x1: float, x2: float, y: int, title: str) -> Markup:
    return tag(
        "rect", tag("title", title), class_=style, x=x1, y=y + 2, width=max(x2 - x1, 2), height=14, rx=3
    )


def graph(tasks: Sequence[Row], edges: Sequence[Sequence[str]]) -> Markup:
    """Tasks in layers by their longest way from the start, with an arrow for each dependency."""
    shown = list(tasks[:MOST])
    if len(shown) < 2:
        return Markup("")
    layers = _layers([t["id"] for t in shown], edges)
    place: dict[str, tuple[int, int]] = {}
    filled: dict[int, int] = {}
    for task in shown:
        layer = layers[task["id"]]
        place[task["id"]] = (layer * (NODE_W + GAP_X), filled.get(layer, 0) * (NODE_H + GAP_Y))
        filled[layer] = filled.get(layer, 0) + 1
    width = (max(filled) + 1) * (NODE_W + GAP_X) - GAP_X + 4
    height = max(filled.values()) * (NODE_H + GAP_Y) + 4
    arrows = Markup("").join(_arrow(place[a], place[b]) for a, b in edges if a in place and b in place)
    nodes = Markup("").join(_node(task, *place[task["id"]]) for task in shown)
    return tag(
        "svg",
        arrows,
        nodes,
        class_="graph",
        data_pan=True,
        viewBox=f"-2 -2 {max(width, 420)} {max(height, 90)}",
        role="img",
        aria_label="Graph of the tasks",
    )


def _layers(ids: Sequence[str], edges: Sequence[Sequence[str]]) -> dict[str, int]:
    known = set(ids)
    parents: dict[str, list[str]] = {}
    children: dict[str, list[str]] = {}
    for parent, child in edges:
        if parent in known and child in known:
            parents.setdefault(child, []).append(parent)
            children.setdefault(parent, []).append(child)
    left = {one: len(parents.get(one, ())) for one in ids}
    layers = dict.fromkeys(ids, 0)
    ready = [one for one in ids if not left[one]]
    while ready:
        one = ready.pop()
        for child in children.get(one, ()):
            layers[child] = max(layers[child], layers[one] + 1)
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    return layers


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x1, y1, x2, y2 = start[0] + NODE_W, start[1] + NODE_H / 2, end[0], end[1] + NODE_H / 2
    bend = (x2 - x1) / 2
    return tag("path", class_="edge", d=f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}")


def _node(task: Row, x: int, y: int) -> Markup:
    tone = TONES.get(task["status"], ("ring", "idle"))[1]
    return tag(
        "g",
        tag("title", task["name"]),
        tag("rect", x=x, y=y, width=NODE_W, height=NODE_H, rx=6),
        tag("text", clip(task["name"], 20), class_="name", x=x + 10, y=y + 14),
        tag("text", task["status"], class_="note", x=x + 10, y=y + 27),
        class_=f"node {tone}",
    )
