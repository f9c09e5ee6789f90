"""What needs attention: the alerts that fire and the errors of the last hour, by severity and size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.alerts import texts
from holdfast.engine import alerts
from holdfast.formatting import describe_count, seconds_between
from holdfast.server.dashboard.alert_links import PUBLIC_ALERT_KINDS, list_alert_links
from holdfast.server.dashboard.site import PageRequest

MIN_FAILED_ATTEMPTS_TO_REPORT = 3
RECENT_FAILURE_PERIOD_S = 3600
MAX_ERROR_GROUPS = 5
Tone = Literal["danger", "warning", "info"]
TONES_BY_SEVERITY: dict[str, Tone] = {"critical": "danger", "warning": "warning", "info": "info"}
_TONE_ORDER = ("danger", "warning", "info")


@dataclass(frozen=True)
class AttentionItem:
    """A problem that needs an operator: its subject, a sentence, and links as (label, URL).

    `size` is how many tasks, attempts or messages it is about: of two equally severe ones, the larger comes
    first. `state` says who takes care of it already.
    """

    tone: Tone
    subject: str
    text: str
    links: Sequence[tuple[str, str]]
    size: int = 0
    state: str = ""


async def load_attention_items(
    request: PageRequest, error_groups: Sequence[Mapping[str, Any]]
) -> list[AttentionItem]:
    """Return what needs attention, the worst and largest first."""
    items = [item async for item in _load_firing_alerts(request)]
    items += _find_failing_tasks(request, error_groups)
    return sort_attention_items(items)


def sort_attention_items(items: Sequence[AttentionItem]) -> list[AttentionItem]:
    """Sort problems: the worst and largest first."""
    return sorted(items, key=lambda item: (_TONE_ORDER.index(item.tone), -item.size))


async def _load_firing_alerts(request: PageRequest) -> AsyncIterator[AttentionItem]:
    for alert in await alerts.list_alerts(request.connection):
        is_visible = request.can("system.view") or alert.kind in PUBLIC_ALERT_KINDS
        if not is_visible or alert.kind == "failed_jobs":  # the groups of errors say more about these
            continue
        yield AttentionItem(
            TONES_BY_SEVERITY[alert.severity],
            texts.format_alert_subject(alert),
            texts.describe_alert(alert),
            list_alert_links(request, alert),
            alert.size,
            _format_state(alert),
        )


def _format_state(alert: alerts.Alert) -> str:
    if alert.silenced_until is not None:
        return "silenced"
    return f"acknowledged by {alert.acknowledged_by}" if alert.acknowledged_at is not None else ""


def _find_failing_tasks(
    request: PageRequest, error_groups: Sequence[Mapping[str, Any]]
) -> Iterator[AttentionItem]:
    for group in sorted(error_groups, key=lambda group: -group["attempts"])[:MAX_ERROR_GROUPS]:
        age_s = seconds_between(group["last_at"], request.now)
        if group["attempts"] < MIN_FAILED_ATTEMPTS_TO_REPORT or age_s is None:
            continue
        if age_s < RECENT_FAILURE_PERIOD_S:
            tasks = ", ".join(group.get("tasks") or [])[:80]
            count = describe_count(group["attempts"], "failed attempt", group["exact"])
            text = f"{count} in the last 24 hours" + (f" in {tasks}" if tasks else "")
            link = ("Error", request.build_url("/error", cause=group["cause"]))
            subject = group.get("type") or group["cause"]
            yield AttentionItem("danger", subject, text, [link], group["attempts"])
