"""Numbers and times in words, for people: filters of the templates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup, escape

NONE = "\N{EN DASH}"
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")
TONES = {
    "queued": ("ring", "idle"),
    "ready": ("ring", "idle"),
    "waiting": ("dots", "idle"),
    "scheduled": ("clock", "idle"),
    "retrying": ("loop", "warn"),
    "running": ("play", "busy"),
    "succeeded": ("check", "good"),
    "done": ("check", "good"),
    "partial": ("half", "warn"),
    "failed": ("cross", "bad"),
    "cancelled": ("slash", "mute"),
    "crashed": ("bolt", "bad"),
    "rejected": ("cross", "bad"),
    "snoozed": ("clock", "idle"),
    "released": ("loop", "mute"),
    "paused": ("pause", "warn"),
    "stopped": ("stop", "warn"),
    "undone": ("loop", "mute"),
    "live": ("dot", "good"),
    "quiet": ("dots", "warn"),
    "lost": ("cross", "bad"),
    "left": ("slash", "mute"),
    "open": ("dot", "good"),
    "on": ("dot", "good"),
    "off": ("stop", "bad"),
    "failing": ("bolt", "warn"),
    "full": ("dot", "warn"),
    "asleep": ("pause", "warn"),
    "free": ("dot", "good"),
    "info": ("dot", "idle"),
    "debug": ("ring", "mute"),
    "warning": ("bolt", "warn"),
    "error": ("cross", "bad"),
}
_DOT = "a1.3 1.3 0 1 0 0 2.6 1.3 1.3 0 0 0 0-2.6Z"
ICONS = {
    "ring": "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3Zm0 1.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7Z",
    "dots": f"M3 6.7{_DOT}M8 6.7{_DOT}M13 6.7{_DOT}",
    "clock": "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 1.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9Z"
    "m-.7 1.7v3.2l2.6 1.6.7-1.1-1.9-1.2V5.2Z",
    "loop": "M8 2.5a5.5 5.5 0 0 1 4.4 2.2V2.8h1.4v4.4H9.4V5.8h2a4 4 0 1 0 .6 3.7h1.5A5.5 5.5 0 1 1 8 2.5Z",
    "play": "M4.5 2.8v10.4L13 8Z",
    "check": "M6.4 12.4 2.3 8.3l1.2-1.2 2.9 2.9 6.1-6.1 1.2 1.2Z",
    "half": "M8 2.5a5.5 5.5 0 1 0 0 11Zm0 0a5.5 5.5 0 0 1 0 11v-1.4a4.1 4.1 0 0 0 0-8.2Z",
    "cross": "M4.2 3 8 6.8 11.8 3 13 4.2 9.2 8l3.8 3.8-1.2 1.2L8 9.2 4.2 13 3 11.8 6.8 8 3 4.2Z",
    "slash": "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Zm0 1.5c.8 0 1.6.3 2.3.7L4.7 10.3A4 4 0 0 1 8 4Z"
    "m0 8c-.8 0-1.6-.3-2.3-.7l5.6-5.6A4 4 0 0 1 8 12Z",
    "bolt": "M9.2 1.5 3.5 9h3.4l-.9 5.5L12 6.8H8.3Z",
    "pause": "M4 3h3v10H4Zm5 0h3v10H9Z",
    "stop": "M3.5 3.5h9v9h-9Z",
    "dot": "M8 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z",
}


def icon(name: str) -> Markup:
    path = ICONS[name]
    return Markup('<svg class="i" viewBox="0 0 16 16" aria-hidden="true"><path d="{}"/></svg>').format(path)


def state(word: str | None, label: str | None = None) -> Markup:
    """Icon and word: a state is never told by its colour alone."""
    word = word or "queued"
    shape, tone = TONES.get(word, ("ring", "idle"))
    return Markup('<span class="state {}">{}<span>{}</span></span>').format(tone, icon(shape), label or word)


def number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def compact(value: float | None) -> str:
    """1,204 as it is, 24.1k, 3.2M."""
    if value is None:
        return NONE
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.1f}{letter}".replace(".0", "")
    return f"{value:,.0f}"


def upto(value: float | None, exact: bool = True) -> str:
    """A count that may have stopped early, which it then says."""
    return compact(value) if exact else f">{compact(value)}"


def seconds(value: float | None) -> str:
    """A span of time in the largest unit that says enough."""
    if value is None:
        return NONE
    value = abs(value)
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 90:
        return f"{value:.0f} s"
    if value < 5400:
        return f"{value / 60:.0f} m"
    if value < 129600:
        return f"{value / 3600:.0f} h"
    return f"{value / 86400:.0f} d"


def size(value: float | None) -> str:
    if value is None:
        return NONE
    for unit in _SIZES:
        if value < 1000 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return ""


def moment(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return None


def between(begin: Any, end: Any) -> float | None:
    """Seconds from one time to another."""
    first, last = moment(begin), moment(end)
    return None if first is None or last is None else (last - first).total_seconds()


def when(value: Any, now: datetime, *, absolute: bool = False) -> Markup:
    """A time relative to now; the exact one is in the title, and the script adds the local one."""
    at = moment(value)
    if at is None:
        return Markup('<span class="none">{}</span>').format(NONE)
    exact = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    shown = exact[:19] if absolute else relative((at - now).total_seconds())
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
        at.astimezone(UTC).isoformat(), exact, Markup("") if absolute else Markup(" data-rel"), shown
    )


def relative(ahead: float) -> str:
    if abs(ahead) < 1:
        return "now"
    return f"in {seconds(ahead)}" if ahead > 0 else f"{seconds(ahead)} ago"


def short(value: Any) -> str:
    """The beginning of an id, which is its time, and its end, which tells it apart."""
    text = str(value)
    return f"{text[:8]}…{text[-5:]}" if len(text) == 36 else text


def pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def preview(value: Any, most: int = 160) -> str:
    """A payload on one line."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def clip(text: Any, most: int = 200) -> str:
    said = "" if text is None else str(text)
    return said if len(said) <= most else said[: most - 1] + "…"


def plural(count: float | None, one: str, many: str | None = None) -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def safe_link(value: str | None) -> Markup:
    """A link only where it leads to a web address; otherwise the text."""
    if value and value.startswith(("https://", "http://")):
        return Markup('<a href="{}" rel="noreferrer noopener" target="_blank">{}</a>').format(
            value, clip(value, 60)
        )
    return escape(value or "")
