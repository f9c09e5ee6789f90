"""Icons and state badges as HTML."""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from holdfast.formatting import STATE_LABELS


class StateStyle(NamedTuple):
    """The icon name and the CSS colour class that show a state."""

    icon: str
    tone: str


DEFAULT_STATE_STYLE = StateStyle("ring", "neutral")
STATE_STYLES = {
    "queued": DEFAULT_STATE_STYLE,
    "ready": DEFAULT_STATE_STYLE,
    "waiting": StateStyle("dots", "neutral"),
    "scheduled": StateStyle("clock", "neutral"),
    "retrying": StateStyle("loop", "warning"),
    "running": StateStyle("play", "active"),
    "succeeded": StateStyle("check", "success"),
    "done": StateStyle("check", "success"),
    "partial": StateStyle("half", "warning"),
    "failed": StateStyle("cross", "danger"),
    "cancelled": StateStyle("slash", "muted"),
    "skipped": StateStyle("slash", "muted"),
    "crashed": StateStyle("bolt", "danger"),
    "rejected": StateStyle("cross", "danger"),
    "snoozed": StateStyle("clock", "neutral"),
    "released": StateStyle("loop", "muted"),
    "paused": StateStyle("pause", "warning"),
    "stopped": StateStyle("stop", "muted"),
    "undone": StateStyle("loop", "muted"),
    "live": StateStyle("dot", "success"),
    "unresponsive": StateStyle("dots", "warning"),
    "draining": StateStyle("half", "warning"),
    "lost": StateStyle("cross", "danger"),
    "open": StateStyle("dot", "success"),
    "active": StateStyle("dot", "success"),
    "disabled": StateStyle("stop", "danger"),
    "failing": StateStyle("bolt", "warning"),
    "full": StateStyle("dot", "warning"),
    "available": StateStyle("dot", "success"),
    "info": StateStyle("dot", "neutral"),
    "debug": StateStyle("ring", "muted"),
    "warning": StateStyle("bolt", "warning"),
    "critical": StateStyle("bolt", "danger"),
    "error": StateStyle("cross", "danger"),
}
_DOT_PATH = "a1.3 1.3 0 1 0 0 2.6 1.3 1.3 0 0 0 0-2.6Z"
ICON_PATHS = {
    "ring": "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3Zm0 1.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7Z",
    "dots": f"M3 6.7{_DOT_PATH}M8 6.7{_DOT_PATH}M13 6.7{_DOT_PATH}",
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


def render_icon(name: str) -> Markup:
    """Render an icon of `ICON_PATHS` as SVG."""
    path = ICON_PATHS[name]
    return Markup('<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d="{}"/></svg>').format(
        path
    )


def render_state_badge(state: str | None) -> Markup:
    """Render a job, task or worker state as a badge with icon and word."""
    name = state or "queued"
    style = STATE_STYLES.get(name, DEFAULT_STATE_STYLE)
    return Markup('<span class="state {}">{}<span>{}</span></span>').format(
        style.tone, render_icon(style.icon), STATE_LABELS.get(name, name)
    )
