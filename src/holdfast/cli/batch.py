"""`holdfast batch`: list, inspect, watch and cancel batches. A batch is a group of jobs counted together."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from holdfast.cli.actor import record_audit_event
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import (
    CliSession,
    confirmation_options,
    json_option,
    pass_session,
    row_limit_option,
    run_on_each_shard,
)
from holdfast.engine import batches, jobs
from holdfast.engine.connection import Connection
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.formatting import format_age, format_count, format_state

BATCH_POLL_INTERVAL_S = 0.3
BATCH_COLUMNS = ["id", "status", "name", "ended", "total", "failed", "owner", "age"]


@click.group("batch")
def batch_command() -> None:
    """List, inspect, watch and cancel batches of jobs."""


async def get_batch_or_fail(connection: Connection, batch_id: UUID) -> dict[str, Any]:
    """Return a batch, or raise `NotFoundError`."""
    row = await jobs.get_batch(connection, batch_id)
    if row is None:
        raise NotFoundError(f"Batch {batch_id} does not exist.", fix="See `holdfast batch list`.", field="id")
    return row


def _compute_batch_status(row: dict[str, Any]) -> str:
    """Compute the status of a batch from its counts, by the rule of the SQL function `get_batch_status`."""
    if not row["finished_at"]:
        return "running" if row["closed_at"] else "open"
    if row["failed"]:
        return "failed"
    return "cancelled" if row["cancelled"] and row["cancelled"] == row["total"] else "succeeded"


@batch_command.command("list")
@click.option("--owner", help="List only batches of this owner. Default: batches of all owners.")
@click.option(
    "--before",
    metavar="BATCH",
    help="List only batches older than the batch with this id, to get the next page. Default: "
    "start with the newest batch.",
)
@row_limit_option
@json_option
@pass_session
@run_on_each_shard
def list_batches(session: CliSession, owner: str | None, before: str | None) -> None:
    """List batches, newest first, at most 50 per page."""
    before_id = None if before is None else parse_uuid(before, "batch")

    async def fetch_batch_rows(connection: Connection) -> list[dict[str, Any]]:
        rows = await batches.list_batches(connection, owner=owner, before=before_id)
        return [
            {**row, "status": _compute_batch_status(row), "age": format_age(row.get("created_at"))}
            for row in rows
        ]

    session.output.print_rows(session.run_with_connection(fetch_batch_rows), BATCH_COLUMNS)


@batch_command.command("show")
@click.argument("batch_id", metavar="BATCH")
@json_option
@pass_session
def show_batch(session: CliSession, batch_id: str) -> None:
    """Show the status of a batch and how many of its jobs have ended."""
    row = session.run_with_connection(
        lambda connection: get_batch_or_fail(connection, parse_uuid(batch_id, "batch"))
    )
    session.output.print_record(row)


@batch_command.command("watch")
@click.argument("batch_id", metavar="BATCH")
@click.option(
    "--wait-timeout",
    type=DURATION,
    help="Stop waiting for the batch after this duration, such as 5m. Default: wait until the batch ends.",
)
@json_option
@pass_session
def watch_batch(session: CliSession, batch_id: str, wait_timeout: timedelta | None) -> int:
    """Follow a batch until it ends. Exit with code 1 if one of its jobs failed."""
    batch_uuid = parse_uuid(batch_id, "batch")

    async def follow_until_end(connection: Connection) -> int:
        deadline = None if wait_timeout is None else time.monotonic() + wait_timeout.total_seconds()
        with _BatchProgress(session) as progress:
            while True:
                row = await get_batch_or_fail(connection, batch_uuid)
                progress.update(row)
                if row["finished_at"]:
                    return 1 if row["failed"] else 0
                if deadline is not None and time.monotonic() >= deadline:
                    raise HoldfastError(
                        f"Batch {batch_uuid} has not ended after {wait_timeout}.",
                        fix=f"The batch is still running; see `holdfast batch show {batch_uuid}`.",
                    )
                await asyncio.sleep(BATCH_POLL_INTERVAL_S)

    return session.run_with_connection(follow_until_end)


class _BatchProgress:
    """Prints the progress of a batch: as a progress bar on a terminal, else as one line per change."""

    def __init__(self, session: CliSession) -> None:
        self._output = session.output
        self._last_row: dict[str, Any] | None = None
        self._bars: Progress | None = None
        if self._output.console.is_terminal and not self._output.json:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=40),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bars = Progress(*columns, console=self._output.console)
            self._bar = self._bars.add_task("batch", total=None, note="")

    def __enter__(self) -> _BatchProgress:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def update(self, row: dict[str, Any]) -> None:
        if self._bars:
            note = f"{row['failed']} failed" if row["failed"] else row["status"]
            self._bars.update(self._bar, total=row["total"], completed=row["ended"], note=note)
        elif row != self._last_row:
            self._last_row = row
            if self._output.json:
                self._output.print_record(row)
            else:
                counts = (
                    f"{row['ended']} of {format_count(row['total'], 'job')} ended, {row['failed']} failed"
                )
                self._output.print_line(f"{format_state(row['status'])} {counts}")


@batch_command.command("cancel")
@click.argument("batch_id", metavar="BATCH")
@click.option(
    "--reason",
    "-r",
    help="Store a reason for the cancellation with the jobs and in the audit log. Default: none.",
)
@confirmation_options
@json_option
@pass_session
def cancel_batch(session: CliSession, batch_id: str, reason: str | None, yes: bool, dry_run: bool) -> None:
    """Cancel the unfinished jobs of a batch."""
    batch_uuid = parse_uuid(batch_id, "batch")

    async def confirm_and_cancel(connection: Connection) -> None:
        row = await get_batch_or_fail(connection, batch_uuid)
        unfinished = row["total"] - row["ended"]
        consequence = f"This cancels {format_count(unfinished, 'job')}."
        if not session.confirm(consequence, yes=yes, dry_run=dry_run):
            return
        count = await jobs.cancel_all_jobs(connection, {"batch": str(batch_uuid)}, reason)
        await record_audit_event(connection, "batch.cancel", str(batch_uuid), jobs=count, reason=reason)
        if session.output.json:
            session.output.print_record({"batch": batch_uuid, "cancelled": count})
        else:
            session.output.print_line(f"Cancelled {format_count(count, 'job')}.")

    session.run_with_connection(confirm_and_cancel)
