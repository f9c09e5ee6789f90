"""`holdfast queue pause|resume|limit|drain|desired-workers`: control the tasks of a queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast.cli.actor import get_local_actor, record_audit_event
from holdfast.cli.completers import suggest_queue_names
from holdfast.cli.limit import confirm_and_delete_limit, limit_options, parse_rate, save_limit
from holdfast.cli.parameters import DURATION
from holdfast.cli.queue import queue_command
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    run_on_each_shard,
)
from holdfast.engine import limits, workers
from holdfast.engine import queues as engine_queues
from holdfast.engine.connection import Connection
from holdfast.engine.limits import LimitRule
from holdfast.engine.messages import queues
from holdfast.errors import DatabaseError, HoldfastError, RefusedError
from holdfast.formatting import format_count, format_duration, format_number, format_task_count

DRAIN_POLL_INTERVAL_S = 0.2


new_queue_option = click.option(
    "--new", "allow_new", is_flag=True, help="Accept a queue that has no tasks yet. Default: refuse it."
)


async def _require_task_queue(connection: Connection, name: str, *, allow_new: bool = False) -> None:
    """Raise an error if a queue has only messages, or does not exist. `allow_new` accepts a new name."""
    has_tasks = await engine_queues.list_task_queues(connection, name, max_rows=1)
    if not has_tasks and await queues.message_queue_exists(connection, name):
        raise RefusedError(
            f"{name} is a message queue, but this command applies to task queues.",
            fix="To stop the consumers of its messages, run `holdfast workers drain`.",
        )
    if not has_tasks and not allow_new:
        fix = "`holdfast queue list` lists the queues. Pass --new for a queue that has no tasks yet."
        await engine_queues.require_queue_name(connection, name, fix=fix)


@queue_command.command("pause")
@click.argument("name", shell_complete=suggest_queue_names)
@click.option(
    "--reason",
    "-r",
    help="Store a reason for the pause; `holdfast job why` and the dashboard show it. Default: none.",
)
@click.option(
    "--duration",
    type=DURATION,
    help="Resume the queue automatically after this duration, such as 1h. Default: the queue stays paused.",
)
@new_queue_option
@json_option
@pass_session
def pause_queue(
    session: CliSession, name: str, reason: str | None, duration: timedelta | None, allow_new: bool
) -> int:
    """Pause a queue: workers start no more of its tasks. Running tasks continue."""
    # A queue of one shard is paused on all: its next task may go to another one.
    is_known = allow_new or _is_queue_of_some_shard(session, name)
    return _pause_on_each_shard(session, name, reason, duration, is_known)


def _is_queue_of_some_shard(session: CliSession, name: str) -> bool:
    """Return whether a shard that answers has tasks of a queue. Without shards, return False."""
    for number in session.list_shard_numbers():
        with contextlib.suppress(DatabaseError):
            if session.select_shard(number).run_with_connection(
                lambda connection: engine_queues.list_task_queues(connection, name, max_rows=1)
            ):
                return True
    return False


@run_on_each_shard
def _pause_on_each_shard(
    session: CliSession, name: str, reason: str | None, duration: timedelta | None, allow_new: bool
) -> int:
    until = None if duration is None else datetime.now(UTC) + duration

    async def pause_and_fetch_queue(connection: Connection) -> dict[str, Any]:
        await _require_task_queue(connection, name, allow_new=allow_new)
        await engine_queues.pause_queue_until(connection, name, until, reason=reason, by=get_local_actor())
        await record_audit_event(
            connection, "queue.pause", name, reason=reason, until=until and until.isoformat()
        )
        return (await engine_queues.list_task_queues(connection, name))[0]

    row = session.run_with_connection(pause_and_fetch_queue)
    if session.output.json:
        session.output.print_record(row)
    else:
        counts = f"{format_task_count(row, 'ready')} ready, {format_task_count(row, 'running')} still running"
        period = f" for {format_duration(duration)}" if duration else ""
        session.output.print_line(f"Queue {name} is paused{period}: {counts}.")
    return 0


@queue_command.command("resume")
@click.argument("name", shell_complete=suggest_queue_names)
@json_option
@pass_session
@run_on_each_shard
def resume_queue(session: CliSession, name: str) -> None:
    """Resume a paused queue: workers start its tasks again."""

    async def resume_and_record(connection: Connection) -> bool:
        await engine_queues.require_queue_name(connection, name)
        resumed = await limits.resume_queue(connection, name)
        if resumed:
            await record_audit_event(connection, "queue.resume", name)
        return resumed

    resumed = session.run_with_connection(resume_and_record)
    if session.output.json:
        session.output.print_record({"queue": name, "resumed": resumed})
    else:
        session.output.print_line(f"Queue {name} {'is resumed' if resumed else 'was not paused'}.")


@queue_command.command("limit")
@click.argument("name", shell_complete=suggest_queue_names)
@limit_options
@click.option("--remove", is_flag=True, help="Delete the concurrency limit and the rate limit of the queue.")
@confirmation_options
@new_queue_option
@json_option
@pass_session
def limit_queue(session: CliSession, /, name: str, **options: Any) -> None:
    """Limit the tasks of a queue that run at once.

    --rate limits how many tasks start per second. Both limits apply across all workers.
    `holdfast limit list` shows the limit as queue:NAME.
    """
    limit_name = f"queue:{name}"
    if options["remove"]:
        confirm_and_delete_limit(session, limit_name, yes=options["yes"], dry_run=options["dry_run"])
        return
    session.run_with_connection(
        lambda connection: _require_task_queue(connection, name, allow_new=options["allow_new"])
    )
    rate = None if options["rate"] is None else parse_rate(options["rate"])
    queue_limit = LimitRule(
        name=limit_name, queue=name, max_running=options["max_running"], rate=rate, burst=options["burst"]
    )
    if options["dry_run"]:
        session.confirm(f"This limits queue {name}.", yes=True, dry_run=True)
    else:
        save_limit(session, queue_limit, allow_new=True)  # it was checked above


@queue_command.command("drain")
@click.argument("name", shell_complete=suggest_queue_names)
@click.option(
    "--reason",
    "-r",
    default="draining",
    show_default=True,
    help="Store this text as the reason for the pause.",
)
@click.option(
    "--wait-timeout",
    type=DURATION,
    default="10m",
    show_default=True,
    help="Stop waiting for running tasks after this duration; the queue stays paused.",
)
@json_option
@pass_session
@run_on_each_shard
def drain_queue(session: CliSession, name: str, reason: str, wait_timeout: timedelta) -> None:
    """Pause a queue and wait until its running tasks end.

    The queue stays paused until `holdfast queue resume`.
    """

    async def pause_and_wait(connection: Connection) -> int:
        await _require_task_queue(connection, name)
        await limits.pause_queue(connection, name, reason=reason, by=get_local_actor())
        await record_audit_event(connection, "queue.pause", name, reason=reason)
        return await _wait_until_queue_idle(session, connection, name, wait_timeout)

    ready = session.run_with_connection(pause_and_wait)
    if session.output.json:
        session.output.print_record({"queue": name, "running": 0, "ready": ready})
    else:
        session.output.print_line(
            f"Queue {name} is drained and paused: no task is running, {format_number(ready)} ready."
        )


async def _wait_until_queue_idle(
    session: CliSession, connection: Connection, name: str, max_wait: timedelta
) -> int:
    """Wait until no task of a queue is running. Return its number of ready tasks."""
    deadline, last_count = time.monotonic() + max_wait.total_seconds(), -1
    while True:
        row = (await engine_queues.list_task_queues(connection, name))[0]
        if not row["running"]:
            return int(row["ready"])
        if row["running"] != last_count:
            last_count = row["running"]
            session.output.print_line(f"{format_count(last_count, 'task')} still running.")
        if time.monotonic() >= deadline:
            running = format_count(last_count, "task")
            raise HoldfastError(
                f"{running} of queue {name} still running after {format_duration(max_wait)}.",
                fix="The queue stays paused. Wait longer with --wait-timeout, or cancel the jobs.",
            )
        await asyncio.sleep(DRAIN_POLL_INTERVAL_S)


@queue_command.command("desired-workers")
@click.argument("name", shell_complete=suggest_queue_names)
@click.option(
    "--per-worker",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Assume that each worker runs this many tasks at once.",
)
@json_option
@pass_session
def count_desired_workers(session: CliSession, name: str, per_worker: int) -> int:
    """Print how many workers a queue needs now.

    The number is for autoscalers. 0 means that there is nothing to do. With shards it is their sum.
    """

    async def fetch_worker_count(connection: Connection) -> int:
        await _require_task_queue(connection, name, allow_new=True)
        return await workers.count_desired_workers(connection, name, per_worker=per_worker)

    counts: list[int] = []

    @run_on_each_shard
    def add_count(own_session: CliSession) -> int:
        counts.append(own_session.run_with_connection(fetch_worker_count))
        return 0

    exit_code = add_count(session)
    session.output.print_value("workers", sum(counts))
    return exit_code
