"""Example request bodies for the OpenAPI document, by operation id."""

from __future__ import annotations

from typing import Final

from holdfast.model import Json

_EXAMPLE_LEASE: Final = "1.6917529027641081856"
_EXAMPLE_RECEIPTS: Final = ["7.1.1794761499464250"]

REQUEST_BODY_EXAMPLES: Final[dict[str, Json]] = {
    "post_jobs_start": {"type": "report", "params": {"pages": ["https://example.org"]}},
    "post_jobs": {"type": "add", "queue": "default", "args": {"x": 1, "y": 2}},
    "post_jobs_id_retry": {"from": ["bind"], "delay_s": 60},
    "post_erasures": {"owner": "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "wait_s": 10},
    "post_worker_claim": {"worker": "go-1", "queues": ["browser"], "max_tasks": 8},
    "post_tasks_id_heartbeat": {
        "lease": _EXAMPLE_LEASE,
        "percent": 40,
        "phase": "ocr",
        "message": "page 4 of 10",
    },
    "post_tasks_id_complete": {"lease": _EXAMPLE_LEASE, "output": {"words": 1204}},
    "post_tasks_id_fail": {
        "lease": _EXAMPLE_LEASE,
        "type": "TimeoutError",
        "error": "no response",
        "retry": True,
    },
    "post_tasks_id_snooze": {"lease": _EXAMPLE_LEASE, "delay_s": 300},
    "post_tasks_id_release": {"lease": _EXAMPLE_LEASE},
    "post_batches": {"name": "May export", "callback": {"type": "notify", "args": {"to": "ann"}}},
    "put_schedules_name": {
        "cron": "0 3 * * MON-FRI",
        "timezone": "Europe/Madrid",
        "job": {"type": "report", "queue": "slow"},
    },
    "post_bulk_actions": {"verb": "cancel", "search": "queue:mail older:1h", "reason": "sent twice"},
    "post_bulk_actions_id_command": {"command": "pause"},
    "post_queues_name_pause": {"reason": "the provider is down"},
    "post_alerts_id_acknowledge": {"note": "I am looking at it"},
    "post_alert_silences": {"until": "2030-01-01T06:00:00Z", "subject": "mail", "reason": "maintenance"},
    "put_alert_rules_name": {
        "kind": "queue_age",
        "subject": "mail",
        "threshold": 300,
        "severity": "critical",
    },
    "put_limits_name": {"queue": "ai", "max_running": 4, "rate": 5, "burst": 10},
    "post_workers_name_command": {"command": "drain"},
    "put_messages_queue": {"unlogged": False},
    "post_messages_queue": {"messages": [{"clip": 77}, {"clip": 78}], "delay_s": 5},
    "post_messages_queue_read": {"qty": 10, "vt_s": 60},
    "post_messages_queue_archive": {"receipts": _EXAMPLE_RECEIPTS},
    "post_messages_queue_delete": {"receipts": _EXAMPLE_RECEIPTS},
    "post_messages_queue_hide": {"receipts": _EXAMPLE_RECEIPTS, "vt_s": 120},
    "post_keys": {"name": "billing", "scopes": ["jobs"], "expires_s": 7776000},
    "post_webhooks": {"url": "https://example.org/hooks/holdfast", "events": ["job.failed"]},
    "patch_webhooks_id": {"active": True},
    "put_hooks_name": {"type": "order", "queue": "default"},
    "post_hooks_name": {"order": 77, "total": "12.50"},
    "post_v1_rpc_function": {"queue_name": "mail", "message": {"hello": "world"}},
}
"""Example bodies by operation id."""
