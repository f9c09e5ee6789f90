"""Format states, durations, counts, ids and wait reasons as text for people.

The dashboard, the command line and the MCP server share these functions, so that the same value reads the
same everywhere. Functions return plain text. The dashboard escapes it, and the command line adds colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

MISSING_VALUE_TEXT = "-"
MAX_REASON_CHARS = 500
STATE_SYMBOLS = {
    "queued": "○", "waiting": "◌", "scheduled": "◷", "ready": "○", "retrying": "↻", "running": "●",
    "succeeded": "✓", "partial": "◐", "failed": "✕", "cancelled": "-",
    "live": "●", "unresponsive": "◌", "lost": "✕", "draining": "◐", "stopped": "-",
}  # fmt: skip
# Labels for states whose name in the API does not say enough to a reader.
STATE_LABELS = {"partial": "partially failed"}
STATE_COLOURS = {
    "running": "cyan", "live": "green", "succeeded": "green", "failed": "red", "lost": "red",
    "retrying": "yellow", "unresponsive": "yellow", "partial": "yellow", "draining": "yellow",
    "cancelled": "dim",
}  # fmt: skip
_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
# The unit, and the smaller unit that follows it.
_DURATION_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
_LONG_DURATION_UNITS = ((86400, 129_600, "day"), (3600, 5400, "hour"), (60, 90, "minute"), (1, 0, "second"))


# Numbers


def format_number(value: float | None, *, missing: str = MISSING_VALUE_TEXT) -> str:
    """Format a number with thousands separators, and one decimal if it is not whole: `1,204`, `0.5`."""
    if value is None:
        return missing
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def format_compact_number(value: float | None, *, missing: str = MISSING_VALUE_TEXT) -> str:
    """Format a count in few characters: `1,204`, `24.1k`, `3.2M`."""
    if value is None:
        return missing
    for threshold, divisor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= threshold:
            return f"{value / divisor:.1f}{suffix}".replace(".0", "")
    return f"{value:,.0f}"


def format_bounded_count(
    value: float | None, exact: bool = True, at_least: bool = False, *, missing: str = MISSING_VALUE_TEXT
) -> str:
    """Format a count that may be an estimate (`~1.2M`) or a lower bound (`≥10k`)."""
    text = format_compact_number(value, missing=missing)
    return text if exact or value is None else f"{'≥' if at_least else '~'}{text}"


def format_task_count(row: Mapping[str, Any], state: str) -> str:
    """Format how many tasks of a queue are in a state: `1,204`, or `~1.2M` for an estimate."""
    exact = row.get(f"{state}_exact", True)
    return format_number(row[state]) if exact else format_bounded_count(row[state], exact=False)


def describe_count(count: float, noun: str, exact: bool = True, at_least: bool = False) -> str:
    """Format a count with its noun for a sentence: `3 jobs`, `about 1,200,000 jobs`, `at least 12 jobs`."""
    if exact:
        return format_count(count, noun)
    if at_least:
        return f"at least {format_count(count, noun)}"
    return f"about {format_count(round_estimate(count), noun)}"


def round_estimate(value: float) -> int:
    """Round an estimate to two digits, because the others would look exact."""
    digits = len(str(abs(round(value)))) - 2
    return round(round(value), -digits) if digits > 0 else round(value)


def format_count(count: float | None, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 job`, `3 jobs`."""
    return f"{format_number(count)} {noun if count == 1 else plural or noun + 's'}"


def format_size(size_bytes: float | None, *, missing: str = MISSING_VALUE_TEXT) -> str:
    """Format a number of bytes in decimal units: `512 B`, `1.5 MB`."""
    if size_bytes is None:
        return missing
    unit = 0
    while abs(size_bytes) >= 1000 and unit < len(_SIZE_UNITS) - 1:
        size_bytes /= 1000
        unit += 1
    decimals = 0 if unit == 0 or size_bytes >= 99.5 else 1
    return f"{size_bytes:.{decimals}f} {_SIZE_UNITS[unit]}"


# Times


def parse_iso_time_or_none(value: Any) -> datetime | None:
    """Parse ISO 8601 text to a datetime; return a datetime unchanged, and None for any other value."""
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def seconds_between(start: Any, end: Any) -> float | None:
    """Return the seconds from one time to another, or None if one of them is missing."""
    first, last = parse_iso_time_or_none(start), parse_iso_time_or_none(end)
    return None if first is None or last is None else (last - first).total_seconds()


def format_duration(duration: float | timedelta | None, *, missing: str = MISSING_VALUE_TEXT) -> str:
    """Format a duration for a table cell in at most two units: `34ms`, `0.2s`, `41s`, `4m 12s`, `3h`."""
    if duration is None:
        return missing
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 0.0005:
        return "0s"
    if seconds < 0.0995:
        return f"{sign}{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{sign}{seconds:.1f}".removesuffix(".0") + "s"
    if seconds < 89.5:
        return f"{sign}{seconds:.0f}s"
    seconds = round(seconds)
    size, suffix, part_size, part_suffix = next(unit for unit in _DURATION_UNITS if seconds >= unit[0])
    whole, part = divmod(round(seconds / part_size), size // part_size)
    return f"{sign}{whole}{suffix}" + (f" {part}{part_suffix}" if part else "")


def format_rough_duration(seconds: float) -> str:
    """Format a duration in one unit, for times that change while you read: `41s`, `4m`, `3h`, `6d`."""
    for limit, unit, suffix in ((5400, 60, "m"), (129_600, 3600, "h"), (float("inf"), 86400, "d")):
        if 89.5 <= seconds < limit:
            return f"{seconds / unit:.0f}{suffix}"
    return format_duration(seconds)


def format_long_duration(duration: float | timedelta) -> str:
    """Format a duration for a sentence: `5 minutes`, `1 hour`."""
    seconds = abs(duration.total_seconds() if isinstance(duration, timedelta) else duration)
    size, unit = next((size, unit) for size, start, unit in _LONG_DURATION_UNITS if seconds >= start)
    return format_count(round(seconds / size), unit)


def format_relative_time(seconds_ahead: float) -> str:
    """Format a time relative to now: `in 5m`, `5m ago`, `now`."""
    if abs(seconds_ahead) < 1:
        return "now"
    text = format_rough_duration(abs(seconds_ahead))
    return f"in {text}" if seconds_ahead > 0 else f"{text} ago"


def format_age(value: Any, now: datetime | None = None) -> str:
    """Format the age of a time: `5m`. The age of a future time is zero."""
    age = seconds_between(value, now or datetime.now(UTC))
    return MISSING_VALUE_TEXT if age is None else format_rough_duration(max(0.0, age))


def format_time_until(value: Any, now: datetime | None = None) -> str:
    """Format the time until a future time: `in 5m`. A past time is `now`."""
    ahead = seconds_between(now or datetime.now(UTC), value)
    if ahead is None:
        return MISSING_VALUE_TEXT
    return f"in {format_rough_duration(ahead)}" if ahead > 0 else "now"


def format_elapsed(start: Any, end: Any) -> str:
    """Format the time from `start` to `end`: `4m 12s`."""
    return format_duration(seconds_between(start, end))


# Text


def truncate_text(text: Any, max_chars: int = 200) -> str:
    """Shorten text to `max_chars` characters; the last one is then an ellipsis."""
    shown = "" if text is None else str(text)
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + "…"


def sanitize_text(text: object, max_chars: int = 200) -> str:
    """Put untrusted text on one line, without control characters that a terminal would interpret."""
    printable = "".join(c if c.isprintable() else " " for c in str(text))
    return truncate_text(" ".join(printable.split()), max_chars)


def shorten_id(value: object) -> str:
    """Shorten a UUID to its first characters (the time) and its last (the random part)."""
    text = str(value)
    return f"{text[:8]}…{text[-5:]}" if len(text) == 36 else text


def format_state(state: str) -> str:
    """Format a state as a symbol and a word: `● running`."""
    return f"{STATE_SYMBOLS.get(state, '·')} {STATE_LABELS.get(state, state)}"


def format_error(row: Mapping[str, Any]) -> str:
    """Format the error of a job, task or attempt as `ValueError: message`; empty if there is none."""
    error: Mapping[str, Any] = row.get("error") or {}
    return f"{error.get('type')}: {error.get('message')}" if error else ""


def format_progress_bar(percent: float | None, width: int = 10) -> str:
    """Format a percentage as a text progress bar. An unknown percentage is blank."""
    if percent is None:
        return " " * width
    filled = round(max(0.0, min(100.0, percent)) / 100 * width)
    return "━" * filled + "╌" * (width - filled)


def format_progress(progress: Mapping[str, Any] | None) -> str:
    """Format progress on one line: `62% ocr page 31 of 50`."""
    progress = progress or {}
    percent = progress.get("percent")
    parts = [f"{percent:.0f}%" if percent is not None else "", progress.get("phase"), progress.get("message")]
    return sanitize_text(" ".join(str(part) for part in parts if part))


# Wait reasons


@dataclass(frozen=True)
class ReasonText:
    """A sentence that explains why a task is in its state, with the time that the sentence refers to.

    The time is separate because the dashboard shows it in an element that counts down. `holders` are the ids
    of the jobs that hold a full limit, which the dashboard shows as links. `str()` appends both.
    """

    text: str
    time_label: str = ""
    time: datetime | None = None
    holders: tuple[str, ...] = ()
    now: datetime | None = None

    def __str__(self) -> str:
        if self.holders:
            return f"{self.text}, held by {', '.join(self.holders)}."
        if self.time is None:
            return f"{self.text}."
        ahead = seconds_between(self.now or datetime.now(UTC), self.time) or 0
        return f"{self.text}; {self.time_label} {format_relative_time(ahead)}."


def describe_wait_reason(reason: Mapping[str, Any], now: datetime | None = None) -> ReasonText:
    """Describe one reason from `explain_task` in a sentence.

    A reason may also carry the `queue` and the `attempt` of its task, as `explain_tasks` adds them.
    """
    now = now or datetime.now(UTC)
    describe = _DESCRIBE_FUNCTION_BY_REASON.get(str(reason.get("reason")))
    text, label, time = describe(reason, now) if describe else (str(dict(reason)), "", None)
    shown = sanitize_text(text, MAX_REASON_CHARS).rstrip(".")
    holders = tuple(str(holder) for holder in reason.get("held_by") or ())
    return ReasonText(shown, label, parse_iso_time_or_none(time), holders, now)


_ReasonParts = tuple[str, str, Any]


def _describe_ended_task(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    error = format_error(reason)
    return f"The task has ended{f': {error}' if error else ''}", "ended", reason.get("at")


def _describe_scheduled_task(reason: Mapping[str, Any], now: datetime) -> _ReasonParts:
    until, error = reason.get("until"), format_error(reason)
    if (seconds_between(until, now) or 0) > 1:
        return "Due, but no worker has claimed the task yet", "was due", until
    if error:
        return f"The last attempt failed: {error}", "next attempt", until
    if reason.get("attempt"):
        return "Waiting for the next attempt", "next attempt", until
    return "Scheduled for later", "starts", until


def _describe_unmet_dependency(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    return f"Waiting for task {reason.get('task')}, which is {reason.get('status')}", "", None


def _describe_running_task(reason: Mapping[str, Any], now: datetime) -> _ReasonParts:
    age = format_long_duration(max(0.0, seconds_between(reason.get("since"), now) or 0))
    worker = f"worker {reason['worker']}" if reason.get("worker") else "a worker"
    return f"Running for {age} on {worker}", "lease expires", reason.get("lease_until")


def _describe_paused_queue(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    queue = f"Queue {reason['queue']}" if reason.get("queue") else "The queue"
    by = f" by {reason['by']}" if reason.get("by") else ""
    note = f": {reason['paused_reason']}" if reason.get("paused_reason") else ""
    return f"{queue} is paused{by}{note}", "resumes", reason.get("until")


def _describe_missing_worker(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    return f"No live worker serves queue {reason.get('queue')} and runs {reason.get('type')} tasks", "", None


def _describe_paused_limit(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    return f"{_format_limit_name(reason)} is paused", "resumes", reason.get("until")


def _describe_full_limit(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    in_use = f"{reason.get('running')} of {reason.get('max_running')} in use"
    return f"{_format_limit_name(reason)} is full: {in_use}", "", None


def _describe_rate_limit(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    return f"{_format_limit_name(reason)} has reached its rate", "next start", reason.get("until")


def _describe_missed_deadline(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    text = "The task did not start before its deadline and will be cancelled"
    return text, "the deadline was", reason.get("start_before")


def _describe_queued_task(reason: Mapping[str, Any], now: datetime) -> _ReasonParts:
    age = seconds_between(reason.get("since"), now)
    ready = "Ready" if age is None else f"Ready for {format_long_duration(max(0.0, age))}"
    ahead = int(reason.get("ahead") or 0)
    bound = "at least " if ahead >= 1000 else ""
    position = f"{bound}{format_count(ahead, 'task')} ahead" if ahead else "next in line"
    return f"{ready}, {position}; all workers are busy", "", None


def _describe_deaths(reason: Mapping[str, Any], _: datetime) -> _ReasonParts:
    crashes, losses = int(reason.get("crashes") or 0), int(reason.get("losses") or 0)
    parts: list[str] = []
    if crashes:
        parts.append(
            f"Its process died {crashes} of at most {reason.get('max_crashes')} times"
            " while only this task ran in it, which is charged to the task"
        )
    if losses:
        parts.append(f"Lost {format_count(losses, 'time')} in a row, which is not charged to the task")
    if reason.get("message"):
        parts.append(f"The last time: {str(reason['message']).rstrip('.')}")
    if reason.get("suspect"):
        parts.append("The task runs alone in a child process")
    return ". ".join(parts), "", None


def _format_limit_name(reason: Mapping[str, Any]) -> str:
    key = reason.get("key")
    if not reason.get("limit"):
        return f"Key {key}"
    return f"Limit {reason['limit']} for key {key}" if key else f"Limit {reason['limit']}"


_DESCRIBE_FUNCTION_BY_REASON = {
    "ended": _describe_ended_task,
    "scheduled": _describe_scheduled_task,
    "deaths": _describe_deaths,
    "dependency": _describe_unmet_dependency,
    "running": _describe_running_task,
    "paused": _describe_paused_queue,
    "no_worker": _describe_missing_worker,
    "asleep": _describe_paused_limit,
    "limit": _describe_full_limit,
    "rate": _describe_rate_limit,
    "expired": _describe_missed_deadline,
    "queued": _describe_queued_task,
}
