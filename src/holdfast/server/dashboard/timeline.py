"""The tasks of a job over time.

Every task has a line: a small SVG whose horizontal axis is the time since the job was submitted, the same for
all lines and for all jobs. The SVGs are stretched to the width of the page, so the texts beside them keep
their size on a phone, and the script zooms by changing the visible part of all of them. Tasks are grouped by
their type; failures come first, and groups without failures are folded when there are many tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from holdfast.formatting import format_count, parse_iso_time_or_none, seconds_between
from holdfast.server.dashboard.filters import format_duration
from holdfast.server.dashboard.state_badges import DEFAULT_STATE_STYLE, STATE_STYLES
from holdfast.server.dashboard.svg import render_svg_element

LINE_WIDTH, LINE_HEIGHT = 1000, 14
MIN_BAR_WIDTH = 3
MIN_TIME_SPAN_S = 0.05
MAX_UNFOLDED_TASKS = 40
MAX_LINES_PER_GROUP = 100
TICK_COUNT = 4
# Which tasks of a group come first.
STATE_ORDER = ("failed", "running", "retrying", "scheduled", "ready", "waiting", "cancelled", "succeeded")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TimeScale:
    """Maps times to horizontal positions. The origin is the time at which the job was submitted."""

    start: datetime
    span_s: float

    def compute_x(self, at: Any) -> float:
        elapsed = seconds_between(self.start, at) or 0
        return LINE_WIDTH * min(max(elapsed / self.span_s, 0), 1)


@dataclass(frozen=True)
class TimelineLine:
    """One task of the timeline: its name, its state, its bar and a note such as its run time."""

    name: str
    state: str
    bar: Markup
    note: str


@dataclass(frozen=True)
class TimelineGroup:
    """The tasks of one type, with one bar for all of them."""

    type: str
    summary: str
    bar: Markup
    is_open: bool
    has_failed: bool
    lines: Sequence[TimelineLine]
    omitted: int


@dataclass(frozen=True)
class Timeline:
    """The timeline of a job: its origin, its length, the labels of its axis, and its groups of tasks."""

    start: datetime
    span_s: float
    ticks: Sequence[str]
    groups: Sequence[TimelineGroup]
    is_grouped: bool


def build_timeline(
    submitted_at: Any, tasks: Sequence[Row], attempts: Sequence[Row], now: datetime
) -> Timeline | None:
    """Build the timeline of a job, or return None if it has no tasks."""
    if not tasks:
        return None
    scale = _compute_time_scale(parse_iso_time_or_none(submitted_at) or now, tasks, attempts, now)
    attempts_by_task: dict[str, list[Row]] = {}
    for attempt in attempts:
        attempts_by_task.setdefault(attempt["task_id"], []).append(attempt)
    by_type: dict[str, list[Row]] = {}
    for task in sorted(tasks, key=_get_sort_key):
        by_type.setdefault(task["type"], []).append(task)
    is_large = len(tasks) > MAX_UNFOLDED_TASKS
    groups = [
        _build_group(name, members, attempts_by_task, scale, now, is_open=not is_large)
        for name, members in by_type.items()
    ]
    groups.sort(key=lambda group: not group.has_failed)
    ticks = [format_duration(scale.span_s * n / TICK_COUNT) for n in range(TICK_COUNT + 1)]
    return Timeline(scale.start, scale.span_s, ticks, groups, is_grouped=len(tasks) > len(by_type))


def _get_sort_key(task: Row) -> tuple[int, str, str, str]:
    """Sort failures first, then running tasks, then the others by their start."""
    state = str(task["state"])
    order = STATE_ORDER.index(state) if state in STATE_ORDER else len(STATE_ORDER)
    return (min(order, 2), str(task["started_at"] or "9"), str(task["due_at"]), str(task["id"]))


def _compute_time_scale(
    start: datetime, tasks: Sequence[Row], attempts: Sequence[Row], now: datetime
) -> TimeScale:
    ends = [
        at
        for row in (*tasks, *attempts)
        for name in ("finished_at", "ended_at", "started_at")
        if (at := parse_iso_time_or_none(row.get(name)))
    ]
    is_live = any(task["status"] in {"running", "ready", "scheduled", "waiting"} for task in tasks)
    end = max([*ends, start] + ([now] if is_live else []))
    return TimeScale(start, max((end - start).total_seconds(), MIN_TIME_SPAN_S))


def _build_group(
    name: str,
    tasks: Sequence[Row],
    attempts_by_task: Mapping[str, Sequence[Row]],
    scale: TimeScale,
    now: datetime,
    *,
    is_open: bool,
) -> TimelineGroup:
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task["state"]] = counts.get(task["state"], 0) + 1
    known = [state for state in (*STATE_ORDER, *counts) if state in counts]
    parts = [f"{counts[state]} {state}" for state in dict.fromkeys(known)]
    has_failed = "failed" in counts
    shown = tasks[:MAX_LINES_PER_GROUP]
    lines = [
        TimelineLine(
            str(task["name"]),
            str(task["state"]),
            _draw_line(_draw_task_bars(task, attempts_by_task.get(task["id"], ()), scale, now)),
            _format_note(task, now),
        )
        for task in shown
    ]
    bars = (bar for task in tasks for bar in _draw_run_bar(task, scale, now))
    summary = f"{format_count(len(tasks), 'task')}: {', '.join(parts)}"
    return TimelineGroup(
        name, summary, _draw_line(bars), is_open or has_failed, has_failed, lines, len(tasks) - len(shown)
    )


def _draw_line(bars: Iterator[Markup]) -> Markup:
    return render_svg_element(
        "svg",
        *bars,
        class_="timeline-bar",
        viewBox=f"0 0 {LINE_WIDTH} {LINE_HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _draw_task_bars(task: Row, attempts: Sequence[Row], scale: TimeScale, now: datetime) -> Iterator[Markup]:
    first_start = min(
        (str(row["started_at"]) for row in (task, *attempts) if row["started_at"]), default=None
    )
    is_waiting = task["status"] in {"ready", "scheduled"}
    waited_until = parse_iso_time_or_none(first_start) or (now if is_waiting else None)
    due_at = parse_iso_time_or_none(task["due_at"])
    if waited_until and due_at and due_at < waited_until and not attempts:
        yield _draw_bar("pale", scale.compute_x(due_at), scale.compute_x(waited_until), "Waiting")
    for attempt in attempts:
        if attempt["started_at"] and attempt["outcome"] not in {"released", "snoozed"}:
            title = f"Attempt {attempt['attempt']}: {attempt['error_type'] or attempt['outcome']}"
            start, end = scale.compute_x(attempt["started_at"]), scale.compute_x(attempt["ended_at"])
            yield _draw_bar("danger", start, end, title)
    yield from _draw_run_bar(task, scale, now)


def _draw_run_bar(task: Row, scale: TimeScale, now: datetime) -> Iterator[Markup]:
    end = _find_run_end(task, now)
    if end:
        tone = STATE_STYLES.get(task["state"], DEFAULT_STATE_STYLE).tone
        title = (
            f"{task['name']}: {task['state']}, {format_duration(seconds_between(task['started_at'], end))}"
        )
        yield _draw_bar(tone, scale.compute_x(task["started_at"]), scale.compute_x(end), title)


def _find_run_end(task: Row, now: datetime) -> datetime | None:
    """Return the end time of a task's last run: now if it is running, None if it never ran."""
    if not task["started_at"] or task["status"] in {"ready", "scheduled", "waiting"}:
        return None
    return parse_iso_time_or_none(task["finished_at"]) or (now if task["status"] == "running" else None)


def _format_note(task: Row, now: datetime) -> str:
    if task["status"] == "running" and task["percent"] is not None:
        return f"{task['percent']:.0f}%"
    end = _find_run_end(task, now)
    return format_duration(seconds_between(task["started_at"], end)) if end else str(task["state"])


def _draw_bar(style: str, start_x: float, end_x: float, title: str) -> Markup:
    x = min(start_x, LINE_WIDTH - MIN_BAR_WIDTH)
    return render_svg_element(
        "rect",
        render_svg_element("title", title),
        class_=style,
        x=round(x, 1),
        y=0,
        width=round(max(end_x - x, MIN_BAR_WIDTH), 1),
        height=LINE_HEIGHT,
    )
