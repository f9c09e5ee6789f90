"""The pages, one file per noun. Importing them registers them."""

from __future__ import annotations

from importlib import import_module

NOUNS = (
    *("overview", "jobs", "job", "rerun", "errors", "queues", "tasks", "messages", "workers", "schedules"),
    "schedule_edit",
    *("bulk", "files", "limits", "webhooks", "database", "preferences"),
)


def register() -> None:
    for noun in NOUNS:
        import_module(f"{__name__}.{noun}")
