"""The table of commands: their names, headings, one-line help and modules.

`holdfast --help` and shell completion read this table only. A command's module, and every package that it
needs, is imported when that command runs. A test compares the one-line help with the command's own help.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandEntry:
    """One command of `holdfast`. `modules[0]` defines the click command; the others add subcommands to it."""

    name: str
    short_help: str
    modules: tuple[str, ...]


def _entry(name: str, short_help: str, *modules: str) -> CommandEntry:
    return CommandEntry(name, short_help, modules or (f"cli.{name}",))


COMMANDS_BY_HEADING: dict[str, tuple[CommandEntry, ...]] = {
    "Get started": (
        _entry("dev", "Run everything for local development, with reload on save.", "devtools.dev"),
        _entry("init", "Create a project from a template.", "devtools.init"),
        _entry("demo", "Run sample jobs and show their progress.", "devtools.demo"),
    ),
    "Run": (
        _entry("worker", "Run the tasks and consumers of an application."),
        _entry("api", "Serve the HTTP API and the dashboard."),
        _entry("migrate", "Install or upgrade the database schema."),
        _entry("doctor", "Check the configuration, the database and the file storage."),
        _entry("db", "Manage the embedded PostgreSQL server."),
        _entry("key", "Manage service keys for the HTTP API."),
        _entry("bench", "Measure throughput and latency on this database.", "devtools.bench"),
    ),
    "Jobs, schedules, files and messages": (
        _entry("submit", "Submit a job."),
        _entry("job", "List, inspect, watch, retry and cancel jobs.",
               "cli.job", "cli.job_search", "cli.job_actions"),
        _entry("batch", "List, inspect, watch and cancel batches of jobs.", "cli.batch", "cli.batch_zip"),
        _entry("cron", "Manage schedules."),
        _entry("file", "List, download, upload and delete files of jobs.", "cli.file", "cli.file_retention"),
        _entry("msg", "Send, read and manage messages in message queues."),
    ),
    "Monitor and operate": (
        _entry("top", "Show queues, running jobs, errors and workers, refreshed every second."),
        _entry("queue", "List, pause, limit and configure queues.", "cli.queue", "cli.queue_actions"),
        _entry("errors", "List failed attempts grouped by cause, and retry or ignore them."),
        _entry("bulk", "Follow, pause, stop and undo bulk actions on jobs."),
        _entry("workers", "List, drain and stop running workers."),
        _entry("limit", "Manage concurrency limits and rate limits."),
        _entry("webhook", "List, enable, disable and delete webhooks."),
    ),
    "Integrate": (
        _entry("mcp", "Serve tools for AI agents over the Model Context Protocol."),
        _entry("openapi", "Print the OpenAPI description of the HTTP API."),
        _entry("schema", "Print the JSON Schema of a task's arguments."),
        _entry("completion", "Print the shell completion script."),
        _entry("version", "Print the version."),
    ),
}  # fmt: skip
COMMANDS_BY_NAME = {entry.name: entry for entries in COMMANDS_BY_HEADING.values() for entry in entries}
