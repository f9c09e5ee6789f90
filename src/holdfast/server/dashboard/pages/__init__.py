"""The pages, one module per noun. Importing a module registers its pages and actions."""

from __future__ import annotations

from importlib import import_module

PAGE_MODULES = (
    "overview",
    "charts",
    "alerts",
    "alert_settings",
    "jobs",
    "job",
    "job_logs",
    "rerun",
    "errors",
    "bulk",
    "batches",
    "files",
    "queues",
    "tasks",
    "schedules",
    "schedule_detail",
    "schedule_edit",
    "messages",
    "limits",
    "webhooks",
    "workers",
    "database",
    "audit",
    "sessions",
    "preferences",
)


def register_pages() -> None:
    """Import every page module, which registers its pages and actions."""
    for name in PAGE_MODULES:
        import_module(f"{__name__}.{name}")
