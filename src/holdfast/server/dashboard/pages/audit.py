"""The audit log: which user did what, and when."""

from __future__ import annotations

from holdfast.engine import audit
from holdfast.server.dashboard.registry import register_page
from holdfast.server.dashboard.site import DashboardPage, PageRequest

MAX_AUDIT_ROWS = 100


@register_page("/audit", "audit.view", reads_replica=True)
async def show_audit_log(request: PageRequest) -> DashboardPage:
    text = request.query.get("before", "")
    before = int(text) if text.isdigit() and len(text) < 19 else None
    entries = await audit.list_audit_entries(request.connection, before=before, limit=MAX_AUDIT_ROWS)
    next_id = entries[-1].id if len(entries) == MAX_AUDIT_ROWS else None
    return DashboardPage("audit.html", "Audit log", {"entries": entries, "next": next_id})
