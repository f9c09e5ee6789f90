"""Webhooks: who is told of what, which of them fail, and those that were switched off."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from holdfast.engine import webhooks
from holdfast.engine.webhooks import Webhook
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View


@screen("/webhooks", "system.view")
async def every(view: View) -> Page:
    found = [one for one in await webhooks.list_webhooks(view.connection) if view.owns(one.owner)]
    rows = [{"hook": one, "state": state_of(one), "address": address(one.url)} for one in found]
    return Page("webhooks.html", "Webhooks", {"rows": rows})


def state_of(one: Webhook) -> str:
    if not one.active:
        return "off"
    return "failing" if one.failing_since else "on"


def address(url: str) -> str:
    """Without what stands behind the question mark: it is often a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}" + ("?…" if parts.query else "")


@deed("/webhooks/{id}/switch", "webhook.edit")
async def switch(asked: Deed) -> tuple[str, str]:
    on, webhook = asked.text("on") == "yes", asked.view.uuid()
    if not await webhooks.switch_webhook(
        asked.connection, webhook, on=on, why=f"Switched off by {asked.by}."
    ):
        raise HTTPException(404, "There is no such webhook.")
    await asked.audit("webhook.on" if on else "webhook.off", webhook)
    return "/webhooks", f"The webhook is {'on' if on else 'off'}."
