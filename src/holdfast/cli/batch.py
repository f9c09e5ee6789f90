"""`holdfast batch`: jobs that are counted together."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from holdfast.cli import words
from holdfast.cli.naming import uuid_named
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.cli.who import record
from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.errors import HoldfastError, NotFoundError

LOOK_SECONDS = 0.3


@click.group()
def batch() -> None:
    """Batches: jobs that are counted together."""


async def named(connection: Connection, batch_id: UUID) -> dict[str, Any]:
    found = await jobs.get_batch(connection, batch_id)
    if found is None:
        raise NotFoundError(f"There is no batch {batch_id}.", field="id")
    return {**found, "state": _state(found)}


def _state(found: dict[str, Any]) -> str:
    if found["finished_at"]:
        return "failed" if found["failed"] else "succeeded"
    return "running" if found["closed_at"] else "open"


@batch.command()
@click.argument("batch_id", metavar="BATCH")
@json_option
@pass_session
def show(session: Session, batch_id: str) -> None:
    """How many jobs of a batch have ended, and how."""
    found = session.ask(lambda connection: named(connection, uuid_named(batch_id, "batch")))
    session.out.record(found)


@batch.command()
@click.argument("batch_id", metavar="BATCH")
@click.option("--within", type=SPAN, help="So long at most.")
@json_option
@pass_session
def watch(session: Session, batch_id: str, within: timedelta | None) -> int:
    """Follow a batch to its end; exit 1 if a job of it failed."""
    asked = uuid_named(batch_id, "batch")

    async def work(connection: Connection) -> int:
        deadline = None if within is None else time.monotonic() + within.total_seconds()
        with _Shown(session) as shown:
            while True:
                found = await named(connection, asked)
                shown.update(found)
                if found["finished_at"]:
                    return 1 if found["failed"] else 0
                if deadline is not None and time.monotonic() >= deadline:
                    raise HoldfastError(f"Batch {asked} has not ended in time.", fix="It goes on.")
                await asyncio.sleep(LOOK_SECONDS)

    return session.ask(work)


class _Shown:
    """A bar on a terminal, a line for each change elsewhere."""

    def __init__(self, session: Session) -> None:
        self._out = session.out
        self._last: dict[str, Any] | None = None
        self._bars: Progress | None = None
        if self._out.console.is_terminal and not self._out.json:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=40),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bars = Progress(*columns, console=self._out.console)
            self._bar = self._bars.add_task("batch", total=None, note="")

    def __enter__(self) -> _Shown:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def update(self, found: dict[str, Any]) -> None:
        if self._bars:
            note = f"{found['failed']} failed" if found["failed"] else found["state"]
            self._bars.update(self._bar, total=found["total"], completed=found["ended"], note=note)
        elif found != self._last:
            self._last = found
            if self._out.json:
                self._out.record(found)
            else:
                counts = (
                    f"{found['ended']} of {words.many(found['total'], 'job')} ended, {found['failed']} failed"
                )
                self._out.line(f"{words.state(found['state'])} {counts}")


@batch.command()
@click.argument("batch_id", metavar="BATCH")
@click.option("--reason", "-r", help="Why; it is kept with the jobs.")
@destructive
@json_option
@pass_session
def cancel(session: Session, batch_id: str, reason: str | None, yes: bool, dry_run: bool) -> None:
    """Cancel what has not ended of a batch."""
    asked = uuid_named(batch_id, "batch")

    async def work(connection: Connection) -> None:
        found = await named(connection, asked)
        left = found["total"] - found["ended"]
        if not session.confirm(f"{words.many(left, 'job')} cancelled.", yes=yes, dry_run=dry_run):
            return
        count = await jobs.cancel_all(connection, {"batch": str(asked)}, reason)
        await record(connection, "batch.cancel", str(asked), jobs=count, reason=reason)
        if session.out.json:
            session.out.record({"batch": asked, "cancelled": count})
        else:
            session.out.line(f"{words.many(count, 'job')} cancelled.")

    session.ask(work)
