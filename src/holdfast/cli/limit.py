"""`holdfast limit`: limit how many tasks run at once, and how many start per second."""

from __future__ import annotations

import re
from typing import Any

import click

from holdfast.cli.actor import record_audit_event
from holdfast.cli.completers import suggest_limit_names, suggest_queue_names, suggest_task_type_names
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    row_limit_option,
    run_on_each_shard,
)
from holdfast.engine import limits
from holdfast.engine.connection import Connection
from holdfast.engine.limits import LimitRule
from holdfast.errors import InvalidError, NotFoundError
from holdfast.formatting import format_time_until

LIMIT_COLUMNS = ["name", "queue", "type", "per_key", "in_use", "rate", "state"]
_RATE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*(s|m|h|d))?")
_SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@click.group("limit")
def limit_command() -> None:
    """Manage concurrency limits and rate limits, which apply across all workers."""


@limit_command.command("list")
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_limits(session: CliSession) -> None:
    """List concurrency limits and rate limits with their current use."""
    rows = session.run_with_connection(limits.list_limits)
    session.output.print_rows(
        rows if session.output.json else [_format_limit(row) for row in rows], LIMIT_COLUMNS
    )


def _format_limit(row: dict[str, Any]) -> dict[str, Any]:
    maximum, paused_until = row["max_running"], row.get("paused_until")
    is_full = maximum is not None and not row["per_key"] and row["running"] >= maximum
    in_use = str(row["running"])
    if maximum is not None:
        in_use += f" (at most {maximum} per key)" if row["per_key"] else f"/{maximum}"
    return {
        **row,
        "in_use": in_use,
        "rate": None if row["rate"] is None else f"{row['rate']:g}/s",
        "state": f"paused, resumes {format_time_until(paused_until)}"
        if paused_until
        else "full"
        if is_full
        else "open",
    }


def parse_rate(text: str) -> float:
    """Parse a rate such as `5/s`, `100/m` or `2`, and return it as a number per second."""
    match = _RATE_PATTERN.fullmatch(text.strip())
    if not match:
        raise InvalidError(f"{text!r} is not a rate.", fix="Write 5/s, 100/m or 1000/h.", field="rate")
    return float(match[1]) / _SECONDS_PER_UNIT[match[2] or "s"]


def limit_options(command: Any) -> Any:
    """Add the command-line options --max-running, --rate and --burst."""
    for option in (
        click.option(
            "--burst",
            type=click.FloatRange(1),
            help="Let up to this many tasks start at once after an idle period, if --rate is set. Default: "
            "the rate per second, at least 1.",
        ),
        click.option(
            "--rate",
            help="Start at most this many tasks per second, minute, hour or day, such as 5/s or 100/m. "
            "Default: no rate limit.",
        ),
        click.option(
            "--max-running",
            type=click.IntRange(0),
            help="Let at most this many of the limited tasks run at once, across all workers; with "
            "--per-key, for each key. Default: no concurrency limit.",
        ),
    ):
        command = option(command)
    return command


@limit_command.command("set")
@click.argument("name", shell_complete=suggest_limit_names)
@click.option(
    "--queue",
    "-q",
    shell_complete=suggest_queue_names,
    help="Apply the limit only to tasks of this queue. Default: tasks of all queues.",
)
@click.option(
    "--type",
    "task_type",
    metavar="TASK",
    shell_complete=suggest_task_type_names,
    help="Apply the limit only to tasks of this type. Default: tasks of all types.",
)
@click.option(
    "--per-key",
    is_flag=True,
    help="Apply the limit to the tasks of each limit key separately, such as one key per customer. "
    "Default: to all tasks together.",
)
@limit_options
@click.option(
    "--new",
    "allow_new",
    is_flag=True,
    help="Accept a queue or a task that does not exist yet. Default: refuse it.",
)
@json_option
@pass_session
def set_limit(session: CliSession, /, name: str, **options: Any) -> None:
    """Create or change the concurrency limit or rate limit NAME.

    Running tasks count towards the limit. No task starts for a moment while they are counted.

    Example: holdfast limit set mail-provider --queue mail --rate 10/s
    """
    save_limit(
        session,
        LimitRule(
            name=name,
            queue=options["queue"],
            type=options["task_type"],
            per_key=options["per_key"],
            max_running=options["max_running"],
            rate=None if options["rate"] is None else parse_rate(options["rate"]),
            burst=options["burst"],
        ),
        allow_new=options["allow_new"],
    )


def save_limit(session: CliSession, limit: LimitRule, *, allow_new: bool) -> None:
    """Create or change a limit and print it. `allow_new` accepts a queue or a task that does not exist."""

    async def put_and_fetch_limit(connection: Connection) -> dict[str, Any]:
        if not allow_new:
            fix = "Pass --new for a queue or a task that does not exist yet."
            await limits.require_names_of_limit(connection, limit, fix=fix)
        await limits.put_limit(connection, limit)
        await record_audit_event(
            connection, "limit.set", limit.name, running=limit.max_running, rate=limit.rate
        )
        return next(row for row in await limits.list_limits(connection) if row["name"] == limit.name)

    row = session.run_with_connection(put_and_fetch_limit)
    session.output.print_rows([row if session.output.json else _format_limit(row)], LIMIT_COLUMNS)


@limit_command.command("delete")
@click.argument("name", shell_complete=suggest_limit_names)
@confirmation_options
@json_option
@pass_session
@run_on_each_shard
def delete_limit(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a limit. Tasks that the limit held back can start."""
    confirm_and_delete_limit(session, name, yes=yes, dry_run=dry_run)


def confirm_and_delete_limit(session: CliSession, name: str, *, yes: bool, dry_run: bool) -> None:
    """Delete a limit after the user confirms. Raise `NotFoundError` if it does not exist."""

    async def delete_if_confirmed(connection: Connection) -> None:
        if name not in {row["name"] for row in await limits.list_limits(connection)}:
            raise NotFoundError(
                f"Limit {name!r} does not exist.", fix="See `holdfast limit list`.", field="name"
            )
        consequence = f"This deletes limit {name}; tasks that it held back can start."
        if session.confirm(consequence, yes=yes, dry_run=dry_run):
            await limits.delete_limit(connection, name)
            await record_audit_event(connection, "limit.remove", name)
            session.output.print_change(f"Limit {name} is deleted.", deleted=name)

    session.run_with_connection(delete_if_confirmed)
