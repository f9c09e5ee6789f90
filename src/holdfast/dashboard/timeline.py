"""The tasks of a job in time and in order, as SVG: a Gantt chart and a graph in layers.

Both are laid out here and only moved in the browser. Beyond `MOST` tasks they show the first ones and say so;
on narrow screens the page shows the list instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from holdfast.dashboard.words import TONES, between, clip, moment, seconds

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
    return Markup(
        '<svg class="gantt" viewBox="0 0 {} {}" role="img" aria-label="Timeline of the tasks">{}{}</svg>'
    ).format(WIDTH, height, _marks(scale, height), rows)


def _scale(tasks: Sequence[Row], attempts: Sequence[Row], now: datetime) -> Scale:
    begins = [
        at for t in tasks for at in [moment(t["started_at"]) or moment(t["due_at"])] if at and at <= now
    ]
    begins += [at for a in attempts for at in [moment(a["started_at"])] if at]
    ends = [moment(t["finished_at"]) or now for t in tasks if t["started_at"]]
    begin = min(begins, default=now)
    return Scale(begin, max((max(ends, default=now) - begin).total_seconds(), 0.05))


def _marks(scale: Scale, height: int) -> Markup:
    inner = WIDTH - LABEL - 110
    return Markup("").join(
        Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="16" y2="{1}"/><text class="axis" x="{0:.1f}" y="10">{2}</text>').format(
            LABEL + inner * share, height, seconds(scale.span * share))
        for share in (0, 0.25, 0.5, 0.75, 1)
    )  # fmt: skip


def _line(task: Row, tried: Sequence[Row], scale: Scale, y: int, now: datetime) -> Markup:
    tone = TONES.get(task["status"], ("ring", "idle"))[1]
    parts = [
        Markup('<text class="name" x="0" y="{}">{}</text>').format(y + 13, clip(task["name"], 28)),
    ]
    for attempt in tried:
        if attempt["outcome"] not in {"released", "snoozed"} and attempt["started_at"]:
            parts.append(_bar("bad", scale.x(attempt["started_at"]), scale.x(attempt["ended_at"]), y,
                f"attempt {attempt['attempt']}: {attempt['error_type'] or attempt['outcome']}"))  # fmt: skip
    ended = moment(task["finished_at"]) or (now if task["status"] == "running" else None)
    if task["started_at"] and ended and task["status"] in {"running", "succeeded", "cancelled"}:
        parts.insert(1, _bar("pale", scale.x(task["due_at"]), scale.x(task["started_at"]), y, "waiting"))
        parts.append(_bar(tone, scale.x(task["started_at"]), scale.x(ended), y, task["status"]))
        note = seconds(between(task["started_at"], ended))
    elif task["status"] in {"ready", "scheduled"}:
        parts.append(
            _bar("pale", scale.x(min(moment(task["due_at"]) or now, now)), scale.x(now), y, "waiting")
        )
        note = task["status"]
    else:
        note = task["status"]
    if task["status"] == "running" and task["percent"] is not None:
        note = f"{task['percent']:.0f}%"
    parts.append(
        Markup('<text class="note" x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH, y + 13, note)
    )
    return Markup('<g class="row">{}</g>').format(Markup("").join(parts))


def _bar(style: str, x1: float, x2: float, y: int, title: str) -> Markup:
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="14" rx="3"><title>{}</title></rect>'
    ).format(style, x1, y + 2, max(x2 - x1, 2), title)


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
    return Markup(
        '<svg class="graph" data-pan viewBox="-2 -2 {} {}" role="img" aria-label="Graph of the tasks">{}{}</svg>'
    ).format(max(width, 420), max(height, 90), arrows, nodes)


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
    return Markup('<path class="edge" d="M{} {}C{} {} {} {} {} {}"/>').format(
        x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2
    )


def _node(task: Row, x: int, y: int) -> Markup:
    tone = TONES.get(task["status"], ("ring", "idle"))[1]
    return Markup(
        '<g class="node {}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        '<text class="name" x="{}" y="{}">{}</text><text class="note" x="{}" y="{}">{}</text></g>'
    ).format(tone, task["name"], x, y, NODE_W, NODE_H, x + 10, y + 14, clip(task["name"], 20), x + 10, y + 27, task["status"])  # fmt: skip
