"""`holdfast bulk`: follow and control bulk actions, which retry or cancel many jobs in growing steps.

`holdfast errors retry` and `holdfast job retry|cancel --search` start bulk actions, after showing how many
jobs they affect. Workers carry them out. `bulk watch` and `--wait` do part of the work themselves, so that
an action also advances where no worker is running.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import click
import msgspec
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast import search as grammar
from holdfast.cli.actor import get_local_actor, record_audit_event
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    run_on_each_shard,
)
from holdfast.engine import bulk_actions
from holdfast.engine.bulk_actions import BulkAction, BulkStageOptions, BulkVerb
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError
from holdfast.formatting import format_age, format_count

BULK_POLL_INTERVAL_S = 0.25
BULK_ACTION_COLUMNS = ["id", "verb", "state", "done", "total", "failed_again", "by", "age", "search"]


@click.group("bulk")
def bulk_command() -> None:
    """Follow, pause, stop and undo bulk actions on jobs."""


def _format_bulk_action(action: BulkAction) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(action, enc_hook=str)
    return {**row, "state": action.status, "age": format_age(action.created_at)}


@bulk_command.command("list")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="List at most this many bulk actions.",
)
@json_option
@pass_session
@run_on_each_shard
def list_bulk_actions(session: CliSession, limit: int) -> None:
    """List bulk actions, newest first."""
    actions = session.run_with_connection(
        lambda connection: bulk_actions.list_bulk_actions(connection, limit=limit)
    )
    session.output.print_rows([_format_bulk_action(action) for action in actions], BULK_ACTION_COLUMNS)


async def get_bulk_action_or_fail(connection: Connection, bulk_id: str) -> BulkAction:
    """Return a bulk action, or raise `NotFoundError`."""
    action = await bulk_actions.get_bulk_action(connection, parse_uuid(bulk_id, "bulk action"))
    if action is None:
        raise NotFoundError(
            f"Bulk action {bulk_id} does not exist.", fix="See `holdfast bulk list`.", field="id"
        )
    return action


@bulk_command.command("show")
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def show_bulk_action(session: CliSession, bulk_id: str) -> None:
    """Show the state and progress of a bulk action."""
    action = session.run_with_connection(lambda connection: get_bulk_action_or_fail(connection, bulk_id))
    session.output.print_record(_format_bulk_action(action))


@bulk_command.command("watch")
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def watch_bulk_action(session: CliSession, bulk_id: str) -> int:
    """Show the progress of a bulk action until it ends.

    The command also processes jobs of the action, so that it advances without a worker.
    Exit with code 1 if the action stopped early because too many jobs failed again.
    """

    async def follow_existing_action(connection: Connection) -> int:
        action = await get_bulk_action_or_fail(connection, bulk_id)
        return await follow_bulk_action(session, connection, action.id)

    return session.run_with_connection(follow_existing_action)


async def follow_bulk_action(session: CliSession, connection: Connection, bulk_id: UUID) -> int:
    """Process the jobs of a bulk action and show its progress until it ends. Return the exit code."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=session.output.console, disable=not _shows_progress_bar(session)) as bars:
        bar = bars.add_task("bulk", total=None, note="")
        while True:
            await bulk_actions.advance_bulk_actions(connection)
            action = await get_bulk_action_or_fail(connection, str(bulk_id))
            note = (
                f"{action.status}, {action.failed_again} failed again"
                if action.failed_again
                else action.status
            )
            completed = action.done + action.skipped
            bars.update(bar, description=action.verb, total=action.total, completed=completed, note=note)
            if action.status not in {"running", "paused"}:
                break
            await asyncio.sleep(BULK_POLL_INTERVAL_S)
    _print_bulk_action(session, action)
    return 1 if action.stop_reason else 0


def _shows_progress_bar(session: CliSession) -> bool:
    return session.output.console.is_terminal and not session.output.json


def _print_bulk_action(session: CliSession, action: BulkAction) -> None:
    if session.output.json:
        session.output.print_record(_format_bulk_action(action))
        return
    skipped = (
        f", {format_count(action.skipped, 'job')} skipped because they had changed" if action.skipped else ""
    )
    reason = f": {action.stop_reason}" if action.stop_reason else ""
    session.output.print_line(
        f"{action.status}: {action.done} of {format_count(action.total, 'job')}{skipped}{reason}."
    )


def _control_bulk_action(session: CliSession, bulk_id: str, verb: bulk_actions.BulkCommand) -> None:
    async def control_action(connection: Connection) -> BulkAction:
        action = await get_bulk_action_or_fail(connection, bulk_id)
        if not await bulk_actions.control_bulk_action(connection, action.id, verb):
            raise ConflictError(
                f"Cannot {verb} bulk action {action.id}: it is {action.status}.",
                fix=f"See `holdfast bulk show {action.id}`.",
            )
        await record_audit_event(connection, f"bulk.{verb}", str(action.id))
        return await get_bulk_action_or_fail(connection, bulk_id)

    session.output.print_record(_format_bulk_action(session.run_with_connection(control_action)))


@bulk_command.command("pause")
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def pause_bulk_action(session: CliSession, bulk_id: str) -> None:
    """Pause a bulk action: it affects no more jobs until you resume it."""
    _control_bulk_action(session, bulk_id, "pause")


@bulk_command.command("resume")
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def resume_bulk_action(session: CliSession, bulk_id: str) -> None:
    """Resume a paused bulk action."""
    _control_bulk_action(session, bulk_id, "resume")


@bulk_command.command("stop")
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def stop_bulk_action(session: CliSession, bulk_id: str) -> None:
    """Stop a bulk action for good. Jobs that it changed stay changed; see `bulk undo`."""
    _control_bulk_action(session, bulk_id, "stop")


@bulk_command.command("undo")
@click.argument("bulk_id", metavar="BULK")
@confirmation_options
@json_option
@pass_session
def undo_bulk_action(session: CliSession, bulk_id: str, yes: bool, dry_run: bool) -> None:
    """Undo a bulk retry: cancel its jobs that have not started yet."""

    async def confirm_and_undo(connection: Connection) -> None:
        action = await get_bulk_action_or_fail(connection, bulk_id)
        retried = format_count(action.done - action.undone, "job")
        consequence = f"This cancels those of {retried} that have not started yet."
        if not session.confirm(consequence, yes=yes, dry_run=dry_run):
            return
        total = 0
        while count := await bulk_actions.undo_bulk_action(connection, action.id):
            total += count
        await record_audit_event(connection, "bulk.undo", str(action.id), jobs=total)
        if session.output.json:
            session.output.print_record({"id": action.id, "undone": total})
        else:
            session.output.print_line(f"Cancelled {format_count(total, 'job')}.")

    session.run_with_connection(confirm_and_undo)


def bulk_options(command: Any) -> Any:
    """Add the command-line options of commands that start a bulk action, such as --wait and --reason."""
    for option in (
        click.option(
            "--wait",
            is_flag=True,
            help="Wait until the bulk action ends, and show its progress. Default: print its id and exit.",
        ),
        click.option(
            "--max-failure-rate",
            type=click.FloatRange(0, 1),
            default=0.2,
            show_default=True,
            help="Stop the bulk action if more than this fraction (0 to 1) of the retried jobs fails again.",
        ),
        click.option(
            "--max-per-second",
            type=click.FloatRange(min=0, min_open=True),
            help="Limit the bulk action to this many jobs per second. Default: no limit.",
        ),
        click.option(
            "--all-at-once",
            is_flag=True,
            help="Retry or cancel all jobs at once, without a trial batch. Default: first 10 jobs, then "
            "100, then the rest.",
        ),
        click.option(
            "--reason",
            "-r",
            help="Store a reason for retrying or cancelling the jobs in the audit log. Default: none.",
        ),
    ):
        command = option(command)
    return confirmation_options(command)


async def start_bulk_action(
    session: CliSession,
    connection: Connection,
    verb: BulkVerb,
    query: grammar.SearchQuery,
    options: dict[str, Any],
) -> int:
    """Start a bulk action on the jobs that match a search, after the user confirms. Return the exit code."""
    count = await bulk_actions.preview_bulk_action(connection, verb, query)
    if not count.count:
        done = "retried" if verb == "retry" else "cancelled"
        raise NotFoundError(
            f"No job that matches {query.text!r} can be {done}.",
            fix=f"List the jobs that match: holdfast job list {query.text!r}",
        )
    noun = "job matches" if count.count == 1 else "jobs match"
    consequence = f"{count} {noun} {query.text!r}; this will {verb} {'it' if count.count == 1 else 'them'}."
    if not session.confirm(consequence, yes=options["yes"], dry_run=options["dry_run"]):
        return 0
    ramp = BulkStageOptions(
        stage_sizes=() if options["all_at_once"] else BulkStageOptions().stage_sizes,
        max_jobs_per_s=options["max_per_second"],
        max_failed_share=options["max_failure_rate"],
    )
    reason = options["reason"] or "from the command line"
    actor = get_local_actor()
    bulk_id = await bulk_actions.start_bulk_action(
        connection, verb, query, by=actor, reason=reason, ramp=ramp
    )
    await record_audit_event(connection, f"bulk.{verb}", str(bulk_id), search=query.text, reason=reason)
    if options["wait"]:
        return await follow_bulk_action(session, connection, bulk_id)
    if session.output.json:
        session.output.print_record(
            _format_bulk_action(await get_bulk_action_or_fail(connection, str(bulk_id)))
        )
    else:
        session.output.print_value("id", bulk_id)
    return 0
