"""`holdfast queue`: list, show, create and delete queues, of tasks and of messages.

One name can have tasks, messages, or both. `list` and `show` print both sides. `pause`, `resume`, `limit`,
`drain` and `desired-workers` (queue_actions.py) apply to tasks; `create`, `drop`, `purge` and `policy`
apply to messages.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast

import click
import msgspec

from holdfast.cli.actor import record_client_audit_event
from holdfast.cli.completers import suggest_queue_names
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    row_limit_option,
    run_on_each_shard,
)
from holdfast.client import Client
from holdfast.client.messages.queues import MessagePolicyChanges
from holdfast.engine import queues
from holdfast.errors import InvalidError, NotFoundError
from holdfast.formatting import (
    format_count,
    format_duration,
    format_task_count,
    format_time_until,
    sanitize_text,
)
from holdfast.model import MessageMetrics, MessagePolicy

QUEUE_COLUMNS = ["queue", "kind", "state", "ready", "running", "delayed", "oldest", "dead", "workers"]
NO_LIMIT_TEXT = "none"  # on the command line: remove a limit
MAX_SHOWN_PAUSE_REASON_CHARS = 60
QueueKind: TypeAlias = Literal["tasks", "messages"]


@click.group("queue")
def queue_command() -> None:
    """List, pause, limit and configure queues.

    pause, resume, limit, drain and desired-workers apply to queues of tasks. create, drop, purge and policy
    apply to queues of messages.
    """


@queue_command.command("list")
@click.option(
    "--kind",
    type=click.Choice(["tasks", "messages"]),
    help="List only queues of tasks or only queues of messages. Default: both.",
)
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_queues(session: CliSession, kind: QueueKind | None) -> None:
    """List queues with their metrics. A queue with tasks and messages has two lines."""

    async def fetch_queue_rows() -> list[dict[str, Any]]:
        async with session.client() as client:
            tasks = await _list_task_queues(client, None) if kind != "messages" else []
            messages = await _list_message_queues(client) if kind != "tasks" else []
        return sorted(tasks + messages, key=lambda row: (row["queue"].lower(), row["kind"] == "messages"))

    rows = session.run_async(fetch_queue_rows())
    session.output.print_rows(
        rows if session.output.json else [_format_queue_row(row) for row in rows], QUEUE_COLUMNS
    )


async def _list_task_queues(client: Client, name: str | None) -> list[dict[str, Any]]:
    async with client.connection() as connection:
        return [{"kind": "tasks", **row} for row in await queues.list_task_queues(connection, name)]


async def _list_message_queues(client: Client) -> list[dict[str, Any]]:
    metrics_by_queue = {metrics.queue: metrics for metrics in await client.queues.metrics_all()}
    return [
        {
            "kind": "messages",
            **_format_message_metrics(metrics_by_queue[message_queue.name]),
            "unlogged": message_queue.unlogged,
            "partitioned": message_queue.partitioned,
        }
        for message_queue in await client.queues.list()
        if message_queue.name in metrics_by_queue
    ]


def _format_queue_row(row: dict[str, Any]) -> dict[str, Any]:
    """Format a task queue or message queue as a table row with the columns `QUEUE_COLUMNS`."""
    if row["kind"] == "messages":
        metrics = {"ready": row["visible"], "running": row["in_flight"], "oldest": row["oldest_age"]}
        return {**row, "state": "active", **metrics}
    has_no_worker = row["ready"] and not row["workers"]
    state = "active, no worker" if has_no_worker else "active"
    return {
        **row,
        "state": _format_pause_state(row) if row.get("paused_at") else state,
        "ready": format_task_count(row, "ready"),
        "running": format_task_count(row, "running"),
        "delayed": format_task_count(row, "scheduled"),
        "oldest": format_duration(row["oldest_s"]) if row["ready"] else None,
    }


def _format_pause_state(row: dict[str, Any]) -> str:
    until = f", resumes {format_time_until(row['paused_until'])}" if row.get("paused_until") else ""
    reason = (
        f": {sanitize_text(row['paused_reason'], MAX_SHOWN_PAUSE_REASON_CHARS)}"
        if row.get("paused_reason")
        else ""
    )
    return f"paused by {row['paused_by']}{until}{reason}"


def _format_message_metrics(metrics: MessageMetrics) -> dict[str, Any]:
    return {**msgspec.structs.asdict(metrics), "oldest_age": _format_seconds(metrics.oldest_age)}


def _format_seconds(duration: timedelta | None) -> str | None:
    """Format a duration as seconds, such as `90s`, which the command line accepts."""
    return None if duration is None else f"{duration.total_seconds():g}s"


def _format_message_policy(policy: MessagePolicy) -> dict[str, Any]:
    values = msgspec.structs.asdict(policy)
    return {
        name: _format_seconds(value) if isinstance(value, timedelta) else value
        for name, value in values.items()
    }


@queue_command.command("show")
@click.argument("name", shell_complete=suggest_queue_names)
@json_option
@pass_session
@run_on_each_shard
def show_queue(session: CliSession, name: str) -> None:
    """Show the metrics, workers, limits and policy of a queue."""

    async def fetch_queue_sections() -> list[dict[str, Any]]:
        async with session.client() as client:
            rows = await _list_task_queues(client, name)
            try:
                policy = _format_message_policy(await client.queues.policy(name))
                metrics = _format_message_metrics(await client.queues.metrics(name))
            except (NotFoundError, InvalidError):
                if not rows:
                    raise
                return rows
            return [*rows, {"kind": "messages", **metrics, "policy": policy}]

    for row in session.run_async(fetch_queue_sections()):
        session.output.print_record(row)


@queue_command.command("create")
@click.argument("name")
@click.option(
    "--unlogged",
    is_flag=True,
    help="Create an unlogged table: sending is faster, but a crash of the database server deletes "
    "all messages. Default: a logged table.",
)
@click.option(
    "--partition",
    metavar="N|DURATION",
    help="Split the queue's table into partitions of this many messages or this duration, such as "
    "1d. Default: one table.",
)
@click.option(
    "--retention",
    metavar="N|DURATION",
    default="100000",
    show_default=True,
    help="Keep partitions for this many messages or this duration, such as 7d, if --partition is set.",
)
@json_option
@pass_session
def create_message_queue(
    session: CliSession, name: str, unlogged: bool, partition: str | None, retention: str
) -> None:
    """Create a message queue. An existing queue is not changed."""
    if partition and unlogged:
        raise click.UsageError("Use either --unlogged or --partition, not both.")

    async def create_if_missing() -> None:
        async with session.client() as client:
            if partition:
                await client.queues.create_partitioned(
                    name,
                    interval=_parse_partition_size(partition),
                    retention=_parse_partition_size(retention),
                )
            else:
                await client.queues.create(name, unlogged=unlogged)
            await record_client_audit_event(client, "messages.create", name)

    session.run_async(create_if_missing())
    session.output.print_change(f"Message queue {name} exists.", queue=name)


def _parse_partition_size(text: str) -> int | timedelta:
    """Parse the size of a partition: a number of messages or a duration."""
    return int(text) if text.isdecimal() else DURATION.convert(text, None, None)


@queue_command.command("drop")
@click.argument("name", shell_complete=suggest_queue_names)
@confirmation_options
@json_option
@pass_session
def drop_message_queue(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a message queue with its messages and its archive."""

    async def drop_if_confirmed() -> None:
        async with session.client() as client:
            metrics = await client.queues.metrics(name)
            messages = format_count(metrics.total, "message")
            consequence = f"This deletes queue {name} with {messages} and {metrics.archived} archived ones."
            if session.confirm(consequence, yes=yes, dry_run=dry_run):
                if not await client.queues.drop(name):
                    raise NotFoundError(f"Message queue {name!r} does not exist.", field="queue")
                await record_client_audit_event(client, "messages.drop", name, messages=metrics.total)
                session.output.print_change(f"Queue {name} is deleted.", deleted=name, messages=metrics.total)

    session.run_async(drop_if_confirmed())


@queue_command.command("purge")
@click.argument("name", shell_complete=suggest_queue_names)
@confirmation_options
@json_option
@pass_session
def purge_message_queue(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Delete all messages of a message queue.

    This also deletes messages that are being processed. Archived messages stay.
    """

    async def purge_if_confirmed() -> None:
        async with session.client() as client:
            metrics = await client.queues.metrics(name)
            consequence = f"This deletes {format_count(metrics.total, 'message')} of queue {name}."
            if session.confirm(consequence, yes=yes, dry_run=dry_run):
                count = await client.queues.purge(name)
                await record_client_audit_event(client, "messages.purge", name, messages=count)
                session.output.print_change(
                    f"Deleted {format_count(count, 'message')}.", queue=name, messages=count
                )

    session.run_async(purge_if_confirmed())


@queue_command.command("policy")
@click.argument("name")
@click.option(
    "--vt",
    type=DURATION,
    help="Set the visibility timeout: how long a message stays hidden from other readers after it "
    "is read. Default: unchanged.",
)
@click.option(
    "--max-reads",
    metavar="N|none",
    help="Move a message to the dead letters after this many reads, or never if the value is `none`. "
    "Default: unchanged.",
)
@click.option(
    "--backoff",
    type=DURATION,
    help="Hide a message for this duration after its first failure; each further failure doubles "
    "the duration. Default: unchanged.",
)
@click.option(
    "--backoff-cap",
    type=DURATION,
    help="Hide a failed message for at most this duration. Default: unchanged.",
)
@click.option(
    "--dead-letters",
    metavar="QUEUE|none",
    help="Move dead letters to this message queue, or to the archive if the value is `none`. "
    "Default: unchanged.",
)
@click.option(
    "--archive-retention",
    metavar="DURATION|none",
    help="Delete archived messages after this duration, or never if the value is `none`. Default: unchanged.",
)
@json_option
@pass_session
def show_or_change_policy(session: CliSession, /, name: str, **options: Any) -> None:
    """Show or change the policy of a message queue.

    The policy is the visibility timeout, the dead letters and the retention of the archive.
    Settings that you do not name stay as they are.
    """
    changes = _build_policy_changes({name: value for name, value in options.items() if value is not None})

    async def save_and_fetch_policy() -> MessagePolicy:
        async with session.client() as client:
            if changes:
                policy = await client.queues.put_policy(name, **changes)
                await record_client_audit_event(client, "messages.policy", name, changed=sorted(changes))
                return policy
            return await client.queues.policy(name)

    session.output.print_record(
        {"queue": name, **_format_message_policy(session.run_async(save_and_fetch_policy()))}
    )


def _build_policy_changes(options: dict[str, Any]) -> MessagePolicyChanges:
    for option in ("max_reads", "dead_letters", "archive_retention"):
        if options.get(option) == NO_LIMIT_TEXT:
            options[option] = None
    if options.get("max_reads") is not None:
        options["max_reads"] = click.INT.convert(options["max_reads"], None, None)
    if options.get("archive_retention") is not None:
        options["archive_retention"] = DURATION.convert(options["archive_retention"], None, None)
    return cast("MessagePolicyChanges", options)
