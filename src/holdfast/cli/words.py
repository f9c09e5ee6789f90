"""Figures, times and states as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

MARKS = {
    "queued": "○", "waiting": "◌", "scheduled": "◷", "ready": "○", "retrying": "↻", "running": "●",
    "succeeded": "✓", "partial": "◐", "failed": "✕", "cancelled": "-",
    "live": "●", "quiet": "◌", "lost": "✕", "draining": "◐", "stopped": "-",
}  # fmt: skip
COLOURS = {
    "running": "cyan", "live": "green", "succeeded": "green", "failed": "red", "lost": "red",
    "retrying": "yellow", "quiet": "yellow", "partial": "yellow", "draining": "yellow", "cancelled": "dim",
}  # fmt: skip


def span(seconds: float | timedelta | None) -> str:
    """`0.2s`, `41s`, `4m`, `3h`, `6d`: short enough for a column."""
    if seconds is None:
        return "-"
    seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 9.95:
        return f"{sign}{seconds:.1f}s" if seconds >= 0.05 else "0s"
    for limit, unit, name in ((99.5, 1, "s"), (5940, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{sign}{seconds / unit:.0f}{name}"
    return f"{sign}{seconds / 86400:.0f}d"


def moment(value: datetime | str | None) -> datetime | None:
    """A time from SQL, where JSON has made text of it."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value)


def since(value: datetime | str | None, now: datetime | None = None) -> str:
    """How long ago."""
    at = moment(value)
    return "-" if at is None else span(max(0.0, ((now or datetime.now(UTC)) - at).total_seconds()))


def until(value: datetime | str | None, now: datetime | None = None) -> str:
    at = moment(value)
    if at is None:
        return "-"
    left = (at - (now or datetime.now(UTC))).total_seconds()
    return f"in {span(left)}" if left > 0 else "now"


def took(start: datetime | str | None, end: datetime | str | None) -> str:
    first, last = moment(start), moment(end)
    return "-" if first is None or last is None else span(last - first)


def size(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(count: float) -> str:
    return f"{count:,.0f}"


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def part(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A member of a row that is an object or nothing."""
    return found.get(name) or {}


def several(found: Mapping[str, Any], name: str) -> list[Any]:
    """A member of a row that is a list or nothing."""
    return found.get(name) or []


def failure(found: Mapping[str, Any]) -> str:
    """`ValueError: it broke`, or nothing."""
    error = part(found, "error")
    return f"{error.get('type')}: {error.get('message')}" if error else ""


def short(job_id: object) -> str:
    """Both ends of an id, as it is shown where room is scarce."""
    text = str(job_id)
    return f"{text[:8]}…{text[-4:]}"


def state(word: str) -> str:
    """Never a colour alone: a mark and the word."""
    return f"{MARKS.get(word, '·')} {word}"


def bar(percent: float | None, width: int = 10) -> str:
    if percent is None:
        return " " * width
    done = round(max(0.0, min(100.0, percent)) / 100 * width)
    return "━" * done + "╌" * (width - done)


def clean(text: object, longest: int = 200) -> str:
    """Text that came from outside, on one line and without anything a terminal would obey."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return f"{shown[: longest - 1]}…" if len(shown) > longest else shown


def doing(progress: dict[str, Any] | None) -> str:
    """`62% ocr page 31 of 50`"""
    progress = progress or {}
    percent = progress.get("percent")
    parts = [f"{percent:.0f}%" if percent is not None else "", progress.get("phase"), progress.get("message")]
    return clean(" ".join(str(part) for part in parts if part))
