"""Every route of the OpenAPI document as a target: its address and a valid body, for tests and attacks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from book_app import PUBLIC_PATHS

# A valid body for each route that does not accept the default ({}).
REQUEST_BODY_BY_OPERATION: dict[str, Any] = {
    "post_jobs_start": {"type": "book"},
    "post_jobs": {"type": "t"},
    "post_worker_claim": {"worker": "w", "queues": ["nothing"]},
    "post_keys": {"name": "x", "scopes": ["keys"]},
    "put_schedules_name": {"job": {"type": "t"}, "every_s": 60},
    "put_limits_name": {"max_running": 1},
    "post_alert_silences": {"until": "2999-01-01T00:00:00Z"},
    "put_alert_rules_name": {"kind": "queue_age", "threshold": 300},
    "post_workers_name_command": {"command": "drain"},
    "post_messages_queue": {"messages": [1]},
    "post_messages_queue_hide": {"ids": [1], "vt_s": 0},
    "post_messages_queue_archive": {"ids": [1]},
    "post_messages_queue_delete": {"ids": [1]},
    "post_webhooks": {"url": "https://example.org/hook", "events": ["job.failed"]},
    "patch_webhooks_id": {"active": True},
    "put_hooks_name": {"type": "t"},
    "post_tasks_id_snooze": {"lease": "1.1", "delay_s": 1},
}
PATH_PARAMETER_VALUES = {"name": "n", "queue": "letters", "key": "hf_nothing", "function": "get_job"}


@dataclass(frozen=True)
class ApiTarget:
    method: str
    path: str
    operation: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.operation["operationId"])

    @property
    def has_id(self) -> bool:
        return "{id}" in self.path or "{task}" in self.path

    def address(self, ids: dict[str, str]) -> str:
        values = defaultdict(lambda: "n", {**PATH_PARAMETER_VALUES, **ids})
        return self.path.format_map(values)

    def body(self) -> Any:
        if "requestBody" not in self.operation:
            return None
        return REQUEST_BODY_BY_OPERATION.get(
            self.name, {"lease": "1.1"} if self.path.startswith("/api/tasks/") else {}
        )


async def list_targets(api: httpx.AsyncClient) -> list[ApiTarget]:
    document = (await api.get("/api/openapi.json")).json()
    return [
        ApiTarget(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path not in PUBLIC_PATHS and "security" in operation
    ]


async def call_target(
    api: httpx.AsyncClient, target: ApiTarget, headers: dict[str, str], ids: dict[str, str]
) -> httpx.Response:
    body = target.body()
    more = {"json": body} if body is not None else {}
    return await api.request(target.method, target.address(ids), headers=headers, **more)


def mask_requested_ids(response: httpx.Response, ids: dict[str, str] | None = None) -> str:
    """Return the response without the requested id, which the caller knows already."""
    text = response.text
    for known in (ids or {}).values():
        text = text.replace(known, "ID")
    if ids is None:
        requested_id = next((part for part in str(response.request.url).split("/") if _is_id(part)), "-")
        text = text.replace(requested_id, "ID")
    return text


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
