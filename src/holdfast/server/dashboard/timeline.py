"""The tasks of a job as SVG: a Gantt chart over time, and a graph of their dependencies in layers.

The layout is computed here; the browser only pans and zooms. Both show at most `MAX_DRAWN_TASKS` tasks, and
the page says how many are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from holdfast.formatting import parse_iso_time_or_none, seconds_between, truncate_text
from holdfast.server.dashboard.filters import format_duration
from holdfast.server.dashboard.state_badges import DEFAULT_STATE_STYLE, STATE_STYLES
from holdfast.server.dashboard.svg import render_svg_element

MAX_DRAWN_TASKS = 300
ROW_HEIGHT, LABEL_WIDTH, NOTE_WIDTH, GANTT_WIDTH = 24, 190, 110, 960
PLOT_WIDTH_PX = GANTT_WIDTH - LABEL_WIDTH - NOTE_WIDTH
NODE_WIDTH, NODE_HEIGHT, NODE_GAP_X, NODE_GAP_Y = 150, 34, 46, 14
MIN_TIME_SPAN_S = 0.05

Row = Mapping[str, Any]


@dataclass(frozen=True)
class GanttTimeScale:
    """Maps times to horizontal positions in the Gantt chart."""

    start: datetime
    span_s: float

    def compute_x(self, at: Any) -> float:
        elapsed = seconds_between(self.start, at) or 0
        return LABEL_WIDTH + PLOT_WIDTH_PX * min(max(elapsed / self.span_s, 0), 1)


def draw_gantt_chart(tasks: Sequence[Row], attempts: Sequence[Row], now: datetime) -> Markup:
    """Draw the Gantt chart of a job: one row per task with its waiting, running and failed times."""
    drawn = sorted(
        tasks[:MAX_DRAWN_TASKS],
        key=lambda task: (str(task["started_at"] or "9"), str(task["due_at"]), task["id"]),
    )
    if not drawn:
        return Markup("")
    scale = _compute_time_scale(drawn, attempts, now)
    attempts_by_task: dict[str, list[Row]] = {}
    for attempt in attempts:
        attempts_by_task.setdefault(attempt["task_id"], []).append(attempt)
    rows = Markup("").join(
        _draw_task_row(task, attempts_by_task.get(task["id"], []), scale, n * ROW_HEIGHT + 22, now)
        for n, task in enumerate(drawn)
    )
    height = len(drawn) * ROW_HEIGHT + 28
    return render_svg_element(
        "svg",
        _draw_time_grid(scale, height),
        rows,
        class_="gantt",
        viewBox=f"0 0 {GANTT_WIDTH} {height}",
        role="img",
        aria_label="Timeline of the tasks",
    )


def _compute_time_scale(tasks: Sequence[Row], attempts: Sequence[Row], now: datetime) -> GanttTimeScale:
    first_times = [
        parse_iso_time_or_none(task["started_at"]) or parse_iso_time_or_none(task["due_at"]) for task in tasks
    ]
    starts = [at for at in first_times if at and at <= now]
    starts += [at for at in (parse_iso_time_or_none(attempt["started_at"]) for attempt in attempts) if at]
    ends = [parse_iso_time_or_none(task["finished_at"]) or now for task in tasks if task["started_at"]]
    start = min(starts, default=now)
    return GanttTimeScale(start, max((max(ends, default=now) - start).total_seconds(), MIN_TIME_SPAN_S))


def _draw_time_grid(scale: GanttTimeScale, height: int) -> Markup:
    elements: list[Markup] = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = LABEL_WIDTH + PLOT_WIDTH_PX * share
        elements.append(render_svg_element("line", class_="grid", x1=x, x2=x, y1=16, y2=height))
        elements.append(
            render_svg_element("text", format_duration(scale.span_s * share), class_="axis", x=x, y=10)
        )
    return Markup("").join(elements)


def _draw_task_row(
    task: Row, attempts: Sequence[Row], scale: GanttTimeScale, y: int, now: datetime
) -> Markup:
    note = _format_task_tooltip(task, now)
    return render_svg_element(
        "g",
        render_svg_element("text", truncate_text(task["name"], 28), class_="name", x=0, y=y + 13),
        *_draw_task_bars(task, scale, y, now),
        *(_draw_failed_attempt(attempt, scale, y) for attempt in attempts if _is_drawn_as_failed(attempt)),
        render_svg_element("text", note, class_="note", x=GANTT_WIDTH, y=y + 13, text_anchor="end"),
        class_="row",
    )


def _is_drawn_as_failed(attempt: Row) -> bool:
    return attempt["outcome"] not in {"released", "snoozed"} and bool(attempt["started_at"])


def _draw_failed_attempt(attempt: Row, scale: GanttTimeScale, y: int) -> Markup:
    title = f"Attempt {attempt['attempt']}: {attempt['error_type'] or attempt['outcome']}"
    return _draw_time_bar(
        "danger", scale.compute_x(attempt["started_at"]), scale.compute_x(attempt["ended_at"]), y, title
    )


def _find_run_end(task: Row, now: datetime) -> datetime | None:
    """Return the end time of a task's last run: now if it is running, None if it never ran."""
    if not task["started_at"] or task["status"] not in {"running", "succeeded", "cancelled"}:
        return None
    return parse_iso_time_or_none(task["finished_at"]) or (now if task["status"] == "running" else None)


def _draw_task_bars(task: Row, scale: GanttTimeScale, y: int, now: datetime) -> Iterator[Markup]:
    end = _find_run_end(task, now)
    if end:
        tone = STATE_STYLES.get(task["status"], DEFAULT_STATE_STYLE).tone
        yield _draw_time_bar(
            "pale", scale.compute_x(task["due_at"]), scale.compute_x(task["started_at"]), y, "Waiting"
        )
        title = str(task["status"]).capitalize()
        yield _draw_time_bar(tone, scale.compute_x(task["started_at"]), scale.compute_x(end), y, title)
    elif task["status"] in {"ready", "scheduled"}:
        due = min(parse_iso_time_or_none(task["due_at"]) or now, now)
        yield _draw_time_bar("pale", scale.compute_x(due), scale.compute_x(now), y, "Waiting")


def _format_task_tooltip(task: Row, now: datetime) -> str:
    if task["status"] == "running" and task["percent"] is not None:
        return f"{task['percent']:.0f}%"
    end = _find_run_end(task, now)
    return format_duration(seconds_between(task["started_at"], end)) if end else str(task["status"])


def _draw_time_bar(style: str, start_x: float, end_x: float, y: int, title: str) -> Markup:
    return render_svg_element(
        "rect",
        render_svg_element("title", title),
        class_=style,
        x=start_x,
        y=y + 2,
        width=max(end_x - start_x, 2),
        height=14,
        rx=3,
    )


def draw_task_graph(tasks: Sequence[Row], edges: Sequence[Sequence[str]]) -> Markup:
    """Draw the tasks of a job in layers, with a line for each dependency."""
    drawn = list(tasks[:MAX_DRAWN_TASKS])
    if len(drawn) < 2:
        return Markup("")
    layers = _assign_task_layers([task["id"] for task in drawn], edges)
    positions: dict[str, tuple[int, int]] = {}
    layer_sizes: dict[int, int] = {}
    for task in drawn:
        layer = layers[task["id"]]
        row = layer_sizes.get(layer, 0)
        positions[task["id"]] = (layer * (NODE_WIDTH + NODE_GAP_X), row * (NODE_HEIGHT + NODE_GAP_Y))
        layer_sizes[layer] = row + 1
    width = (max(layer_sizes) + 1) * (NODE_WIDTH + NODE_GAP_X) - NODE_GAP_X + 4
    height = max(layer_sizes.values()) * (NODE_HEIGHT + NODE_GAP_Y) + 4
    lines = [
        _draw_dependency_line(positions[parent], positions[child])
        for parent, child in edges
        if parent in positions and child in positions
    ]
    nodes = [_draw_task_node(task, *positions[task["id"]]) for task in drawn]
    return render_svg_element(
        "svg",
        *lines,
        *nodes,
        class_="graph",
        data_pan=True,
        viewBox=f"-2 -2 {max(width, 420)} {max(height, 90)}",
        role="img",
        aria_label="Dependency graph of the tasks",
    )


def _assign_task_layers(task_ids: Sequence[str], edges: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the layer number of each task: one more than the highest layer of its dependencies."""
    known = set(task_ids)
    children: dict[str, list[str]] = {}
    missing_parents = dict.fromkeys(task_ids, 0)
    for parent, child in edges:
        if parent in known and child in known:
            children.setdefault(parent, []).append(child)
            missing_parents[child] += 1
    layers = dict.fromkeys(task_ids, 0)
    ready = [task_id for task_id in task_ids if not missing_parents[task_id]]
    while ready:
        parent = ready.pop()
        for child in children.get(parent, ()):
            layers[child] = max(layers[child], layers[parent] + 1)
            missing_parents[child] -= 1
            if not missing_parents[child]:
                ready.append(child)
    return layers


def _draw_dependency_line(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x1, y1, x2, y2 = start[0] + NODE_WIDTH, start[1] + NODE_HEIGHT / 2, end[0], end[1] + NODE_HEIGHT / 2
    bend = (x2 - x1) / 2
    return render_svg_element(
        "path", class_="edge", d=f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    )


def _draw_task_node(task: Row, x: int, y: int) -> Markup:
    tone = STATE_STYLES.get(task["status"], DEFAULT_STATE_STYLE).tone
    return render_svg_element(
        "g",
        render_svg_element("title", task["name"]),
        render_svg_element("rect", x=x, y=y, width=NODE_WIDTH, height=NODE_HEIGHT, rx=6),
        render_svg_element("text", truncate_text(task["name"], 20), class_="name", x=x + 10, y=y + 14),
        render_svg_element("text", task["status"], class_="note", x=x + 10, y=y + 27),
        class_=f"node {tone}",
    )
