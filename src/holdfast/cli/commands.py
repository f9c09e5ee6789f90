"""The table of commands: their names, headings, one-line help and modules.

`holdfast --help` and shell completion read this table only. A command's module, and every package that it
needs, is imported when that command runs. A test compares the one-line help with the command's own help.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandEntry:
    """One entry in the table of `holdfast` commands: its name, its one-line help and its modules.

    `modules[0]` defines the click command; the other modules add subcommands.
    """

    name: str
    short_help: str
    modules: tuple[str, ...]


def _build_command(name: str, short_help: str, *modules: str) -> CommandEntry:
    return CommandEntry(name, short_help, modules or (f"cli.{name}",))


COMMANDS_BY_HEADING: dict[str, tuple[CommandEntry, ...]] = {
    "Get started": (
        _build_command("dev", "Run everything for local development, with reload on save.", "devtools.dev"),
        _build_command("init", "Create a project from a template.", "devtools.init"),
        _build_command("demo", "Run sample jobs and show their progress.", "devtools.demo"),
    ),
    "Run": (
        _build_command("worker", "Run the tasks and consumers of an application."),
        _build_command("api", "Serve the HTTP API and the dashboard."),
        _build_command("migrate", "Install or upgrade the database schema."),
        _build_command("install", "Install the tables of a bundled application (system)."),
        _build_command("doctor", "Check the configuration, the database and the file storage."),
        _build_command("settings", "List all settings with their values.", "cli.setting_list"),
        _build_command("db", "Manage the embedded PostgreSQL server."),
        _build_command("key", "Manage service keys for the HTTP API."),
        _build_command("session", "List and end sessions of the dashboard.", "cli.sessions"),
        _build_command("bench", "Measure throughput and latency on this database.", "devtools.bench"),
    ),
    "Jobs, schedules, files and messages": (
        _build_command("submit", "Submit a job."),
        _build_command("job", "List, inspect, watch, retry and cancel jobs.",
                     "cli.job", "cli.job_search", "cli.job_actions"),
        _build_command("batch", "List, inspect, watch and cancel batches of jobs.",
                     "cli.batch", "cli.batch_zip"),
        _build_command("cron", "Manage schedules."),
        _build_command("file", "List, download, upload and delete files of jobs.",
                     "cli.file", "cli.file_check", "cli.file_retention"),
        _build_command("msg", "Send, read and manage messages in message queues."),
    ),
    "Monitor and operate": (
        _build_command("top", "Show queues, running jobs, errors and workers, refreshed every second."),
        _build_command("alert", "List, acknowledge and silence alerts, and manage their rules and channels.",
                     "cli.alert", "cli.alert_rules"),
        _build_command("queue", "List, pause, limit and configure queues.", "cli.queue", "cli.queue_actions"),
        _build_command("errors", "List, retry and ignore groups of failed attempts with the same cause."),
        _build_command("bulk", "Follow, pause, stop and undo bulk actions on jobs."),
        _build_command("workers", "List, drain and stop running workers."),
        _build_command("limit", "Manage concurrency limits and rate limits."),
        _build_command("shard", "Number, list and drain shards."),
        _build_command("owner", "Erase everything of an owner.", "cli.owner"),
        _build_command("usage", "Show what calls of providers used and cost."),
        _build_command("webhook", "List, enable, disable and delete webhooks."),
    ),
    "Integrate": (
        _build_command("mcp", "Serve tools for AI agents over the Model Context Protocol."),
        _build_command("openapi", "Print the OpenAPI description of the HTTP API."),
        _build_command("schema", "Print the JSON Schema of a task's arguments."),
        _build_command("completion", "Print the shell completion script."),
        _build_command("version", "Print the version."),
    ),
}  # fmt: skip
COMMANDS_BY_NAME = {entry.name: entry for entries in COMMANDS_BY_HEADING.values() for entry in entries}
