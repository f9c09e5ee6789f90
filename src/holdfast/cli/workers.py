"""`holdfast workers`: list, show, drain and stop running workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from holdfast.cli.actor import record_audit_event
from holdfast.cli.completers import suggest_worker_names
from holdfast.cli.output import CliOutput
from holdfast.cli.parameters import DURATION
from holdfast.cli.rows import get_object_or_empty
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    row_limit_option,
    run_on_each_shard,
)
from holdfast.engine import leases
from holdfast.engine import workers as engine_workers
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError
from holdfast.formatting import (
    format_age,
    format_count,
    format_duration,
    format_progress,
    format_size,
    format_state,
    format_time_until,
)

WORKER_COLUMNS = ["name", "state", "running", "slots", "queues", "version", "lag", "memory", "heartbeat"]
WORKER_TASK_COLUMNS = ["job", "task", "attempt", "running_for", "deadline", "progress"]
WORKER_LOOKUP_PERIOD_S = 35 * 86400
MAX_LISTED_WORKER_NAMES = 5


@click.group("workers")
def workers_command() -> None:
    """List, show, drain and stop running workers.

    `holdfast worker APP`, without s, starts a worker.
    """


@workers_command.command("list")
@click.option(
    "--since",
    type=DURATION,
    default="1h",
    show_default=True,
    help="List only workers whose last heartbeat is at most this long ago.",
)
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_workers(session: CliSession, since: timedelta) -> None:
    """List workers with their state, load and last heartbeat."""
    rows = session.run_with_connection(
        lambda connection: engine_workers.list_workers(connection, within_s=since.total_seconds())
    )
    session.output.print_rows([_format_worker(session.output, row) for row in rows], WORKER_COLUMNS)


def _format_worker(output: CliOutput, row: dict[str, Any]) -> dict[str, Any]:
    if output.json:
        return row
    report = get_object_or_empty(row, "report")
    lag = report.get("loop_lag_ms")
    return {
        "name": row["name"],
        "state": format_state(row["state"]),
        "running": row["running"],
        "slots": report.get("slots"),
        "queues": ", ".join(row["queues"]),
        "version": report.get("version"),
        "lag": None if lag is None else f"{lag:.0f} ms",
        "memory": format_size(report.get("rss")),
        "heartbeat": f"{format_duration(row['seen_s'])} ago",
    }


@workers_command.command("show")
@click.argument("name", shell_complete=suggest_worker_names)
@json_option
@pass_session
@run_on_each_shard
def show_worker(session: CliSession, name: str) -> None:
    """Show a worker and the tasks that it is running.

    NAME is the name of a worker, or its beginning if that is unambiguous.
    """

    async def fetch_worker_with_tasks(connection: Connection) -> dict[str, Any]:
        row = await get_worker_or_fail(connection, name)
        return {**row, "tasks": await engine_workers.list_running_tasks_of_worker(connection, row["name"])}

    row = session.run_with_connection(fetch_worker_with_tasks)
    if session.output.json:
        session.output.print_record(row)
        return
    tasks = row.pop("tasks")
    types = ", ".join(row.get("types") or ["all"])
    session.output.print_record({**_format_worker(session.output, row), "types": types})
    session.output.print_rows([_format_worker_task(task) for task in tasks], WORKER_TASK_COLUMNS)


def _format_worker_task(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "job": task["job"],
        "task": task["name"],
        "attempt": task["attempt"],
        "running_for": format_age(task["started_at"]),
        "deadline": format_time_until(task["deadline"]),
        "progress": format_progress(task),
    }


async def get_worker_or_fail(connection: Connection, name: str) -> dict[str, Any]:
    """Return the worker with this name, or the only worker whose name starts with it."""
    rows = await engine_workers.list_workers(connection, within_s=WORKER_LOOKUP_PERIOD_S)
    matches = [row for row in rows if row["name"] == name] or [
        row for row in rows if row["name"].startswith(name)
    ]
    if not matches:
        raise NotFoundError(
            f"Worker {name!r} does not exist.", fix="See `holdfast workers list`.", field="worker"
        )
    if len(matches) > 1:
        listed = ", ".join(row["name"] for row in matches[:MAX_LISTED_WORKER_NAMES])
        raise ConflictError(
            f"More than one worker name starts with {name}: {listed}.", fix="Give more characters."
        )
    return matches[0]


@workers_command.command("drain")
@click.argument("name", shell_complete=suggest_worker_names)
@confirmation_options
@json_option
@pass_session
@run_on_each_shard
def drain_worker(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Let a worker finish its running tasks and exit."""
    _send_worker_command(session, name, "drain", yes=yes, dry_run=dry_run)


@workers_command.command("stop")
@click.argument("name", shell_complete=suggest_worker_names)
@confirmation_options
@json_option
@pass_session
@run_on_each_shard
def stop_worker(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Stop a worker, as SIGTERM does. Tasks that outlast its grace period are released."""
    _send_worker_command(session, name, "stop", yes=yes, dry_run=dry_run)


def _send_worker_command(
    session: CliSession, name: str, command: leases.WorkerCommand, *, yes: bool, dry_run: bool
) -> None:
    async def confirm_and_send(connection: Connection) -> None:
        row = await get_worker_or_fail(connection, name)
        running = format_count(row["running"], "running task")
        consequence = f"This makes worker {row['name']} {command} ({running})."
        if not session.confirm(consequence, yes=yes, dry_run=dry_run):
            return
        if row["state"] not in {"live", "unresponsive", "draining"}:
            raise ConflictError(
                f"Worker {row['name']} is {row['state']}: there is no process that could {command}.",
                fix="See `holdfast workers list`.",
            )
        await leases.set_worker_command(connection, row["name"], command)
        await record_audit_event(connection, f"worker.{command}", row["name"])
        session.output.print_record({"worker": row["name"], "command": command})

    session.run_with_connection(confirm_and_send)
