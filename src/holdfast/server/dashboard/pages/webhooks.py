"""The webhooks page: endpoints that are notified when jobs end, and which of them fail."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from holdfast.engine import webhooks
from holdfast.engine.webhooks import Webhook
from holdfast.server.dashboard.flash import ActionResult, UndoAction
from holdfast.server.dashboard.registry import register_action, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest


@register_page("/webhooks", "system.view")
async def list_webhooks(request: PageRequest) -> DashboardPage:
    visible = [
        webhook
        for webhook in await webhooks.list_webhooks(request.connection)
        if request.can_see_owner(webhook.owner)
    ]
    rows = [
        {"webhook": webhook, "state": get_webhook_state(webhook), "url": remove_query_string(webhook.url)}
        for webhook in visible
    ]
    return DashboardPage("webhooks.html", "Webhooks", {"rows": rows})


def get_webhook_state(webhook: Webhook) -> str:
    """Return the state of a webhook: `active`, `failing` or `disabled`."""
    if not webhook.active:
        return "disabled"
    return "failing" if webhook.failing_since else "active"


def remove_query_string(url: str) -> str:
    """Return a URL without its query string, which often contains a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}" + ("?…" if parts.query else "")


@register_action("/webhooks/{id}/switch", "webhook.edit")
async def enable_or_disable_webhook(action: ActionRequest) -> ActionResult:
    enable, webhook_id = action.get_text("on") == "yes", action.request.parse_id()
    if not await webhooks.set_webhook_active(
        action.connection, webhook_id, on=enable, reason=f"Disabled by {action.actor_name}."
    ):
        raise HTTPException(404, f"Webhook {webhook_id} does not exist.")
    await action.record_audit("webhook.enabled" if enable else "webhook.disabled", webhook_id)
    undo = UndoAction(f"/webhooks/{webhook_id}/switch", {"on": "no" if enable else "yes"})
    return ActionResult("/webhooks", f"Webhook {'enabled' if enable else 'disabled'}.", undo)
