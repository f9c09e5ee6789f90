"""Where the dashboard shows what an alert is about."""

from __future__ import annotations

from typing import cast

from holdfast.engine.alerts import Alert
from holdfast.formatting import truncate_text
from holdfast.search import quote_search_value
from holdfast.server.dashboard.site import PageRequest

MAX_WORKER_LINKS = 3
# What users without the permission system.view see: it names queues and task types, as their own pages do.
PUBLIC_ALERT_KINDS = frozenset({"queue_age", "no_worker", "failure_rate", "failed_jobs", "queue_paused"})


def list_alert_links(request: PageRequest, alert: Alert) -> list[tuple[str, str]]:
    """Return the pages about the subject of an alert that the user may open, as (label, URL)."""
    name, url = alert.subject, request.build_url
    system_links = {
        "queue_age": ("Queue", url("/queue", name=name)),
        "no_worker": ("Queue", url("/queue", name=name)),
        "queue_paused": ("Queue", url("/queue", name=name)),
        "lost_workers": ("Workers", url("/workers")),
        "schedule_missed": ("Schedule", url("/schedules/show", name=name)),
        "storage": ("Database", url("/database")),
        "old_snapshot": ("Database", url("/database")),
        "webhook_failing": ("Webhooks", url("/webhooks")),
    }
    links: list[tuple[str, str]] = []
    if alert.kind == "lost_workers" and request.can("system.view"):
        names = cast("list[str]", alert.detail.get("names") or [])[:MAX_WORKER_LINKS]
        links += [(truncate_text(worker, 40), url("/worker", name=worker)) for worker in names]
    if alert.kind in {"failure_rate", "failed_jobs"}:
        links.append(("Failed jobs", url("/jobs", q=f"state:failed task:{quote_search_value(name)}")))
    if alert.kind == "no_worker":
        links.append(("Jobs", url("/jobs", q=f"state:ready queue:{quote_search_value(name)}")))
    if alert.kind == "dead_letters" and request.can("message.view"):
        links.append(("Messages", url("/messages", queue=name, place="dead")))
    if alert.kind == "bulk_stopped" and request.can("bulk.run"):
        links.append(("Bulk action", url(f"/bulk/{name}")))
    if alert.kind in system_links and request.can("system.view"):
        links.append(system_links[alert.kind])
    return links
