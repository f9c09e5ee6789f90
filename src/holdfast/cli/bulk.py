"""`holdfast bulk`: actions on many jobs. They go in waves, can be paused, stopped and undone.

They are started by `holdfast errors retry` and `holdfast job retry|cancel --search`, which first show how
many jobs it is about. Workers carry them on; `bulk watch` and `--wait` do their share too, so that it also
goes on where no worker runs.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import click
import msgspec
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast import search as grammar
from holdfast.cli import words
from holdfast.cli.naming import uuid_named
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.who import record, somebody
from holdfast.engine import search
from holdfast.engine.connection import Connection
from holdfast.engine.search import Bulk, Ramp, Verb
from holdfast.errors import ConflictError, NotFoundError

LOOK_SECONDS = 0.25
COLUMNS = ["id", "verb", "state", "done", "total", "again", "by", "age", "search"]


@click.group()
def bulk() -> None:
    """Actions on many jobs: look at them, pause, stop, undo."""


def _row(found: Bulk) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)
    return {**row, "state": found.status, "age": words.since(found.created_at)}


@bulk.command("list")
@click.option("--limit", "-n", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most.")
@json_option
@pass_session
def list_bulk(session: Session, limit: int) -> None:
    """Actions, newest first."""
    found = session.ask(lambda connection: search.list_bulk(connection, limit=limit))
    session.out.rows([_row(each) for each in found], COLUMNS)


async def named(connection: Connection, word: str) -> Bulk:
    found = await search.get_bulk(connection, uuid_named(word, "bulk action"))
    if found is None:
        raise NotFoundError(f"There is no bulk action {word}.", fix="See `holdfast bulk list`.", field="id")
    return found


@bulk.command()
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def show(session: Session, bulk_id: str) -> None:
    """How far an action is."""
    session.out.record(_row(session.ask(lambda connection: named(connection, bulk_id))))


@bulk.command()
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def watch(session: Session, bulk_id: str) -> int:
    """Follow an action to its end, and help it along; exit 1 if it stopped by itself."""

    async def work(connection: Connection) -> int:
        return await follow(session, connection, (await named(connection, bulk_id)).id)

    return session.ask(work)


async def follow(session: Session, connection: Connection, bulk_id: UUID) -> int:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=session.out.console, disable=not _live(session)) as bars:
        bar = bars.add_task("bulk", total=None, note="")
        while True:
            await search.drive_bulk(connection)
            found = await named(connection, str(bulk_id))
            note = f"{found.status}, {found.again} failed again" if found.again else found.status
            bars.update(bar, description=found.verb, total=found.total, completed=_handled(found), note=note)
            if found.status not in {"running", "paused"}:
                break
            await asyncio.sleep(LOOK_SECONDS)
    _tell(session, found)
    return 1 if found.stopped_why else 0


def _live(session: Session) -> bool:
    return session.out.console.is_terminal and not session.out.json


def _handled(found: Bulk) -> int:
    return found.done + found.passed


def _tell(session: Session, found: Bulk) -> None:
    if session.out.json:
        session.out.record(_row(found))
        return
    passed = f", {words.many(found.passed, 'job')} had changed meanwhile" if found.passed else ""
    why = f": {found.stopped_why}" if found.stopped_why else ""
    session.out.line(f"{found.status}: {found.done} of {words.many(found.total, 'job')}{passed}{why}.")


def _control(session: Session, bulk_id: str, verb: search.Control) -> None:
    async def work(connection: Connection) -> Bulk:
        found = await named(connection, bulk_id)
        if not await search.bulk_control(connection, found.id, verb):
            raise ConflictError(
                f"Bulk action {found.id} is {found.status}.", fix="It can no longer be changed."
            )
        await record(connection, f"bulk.{verb}", str(found.id))
        return await named(connection, bulk_id)

    session.out.record(_row(session.ask(work)))


@bulk.command()
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def pause(session: Session, bulk_id: str) -> None:
    """Act on no more jobs until it is resumed."""
    _control(session, bulk_id, "pause")


@bulk.command()
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def resume(session: Session, bulk_id: str) -> None:
    """Go on with one that was paused."""
    _control(session, bulk_id, "resume")


@bulk.command()
@click.argument("bulk_id", metavar="BULK")
@json_option
@pass_session
def stop(session: Session, bulk_id: str) -> None:
    """Act on no more jobs. What was done stays done; see undo."""
    _control(session, bulk_id, "stop")


@bulk.command()
@click.argument("bulk_id", metavar="BULK")
@destructive
@json_option
@pass_session
def undo(session: Session, bulk_id: str, yes: bool, dry_run: bool) -> None:
    """Take back a retry: cancel what it restarted and has not started yet."""

    async def work(connection: Connection) -> None:
        found = await named(connection, bulk_id)
        most = words.many(found.done - found.undone, "job")
        if not session.confirm(f"Of {most}, those not started yet are cancelled.", yes=yes, dry_run=dry_run):
            return
        count = 0
        while taken := await search.bulk_undo(connection, found.id):
            count += taken
        await record(connection, "bulk.undo", str(found.id), jobs=count)
        if session.out.json:
            session.out.record({"id": found.id, "undone": count})
        else:
            session.out.line(f"{words.many(count, 'job')} taken back.")

    session.ask(work)


def options(command: Any) -> Any:
    """How an action on many goes; shared by all commands that start one."""
    for option in (
        click.option("--wait", is_flag=True, help="Follow it to its end."),
        click.option("--stop-share", type=click.FloatRange(0, 1), default=0.2, show_default=True,
                     help="Stop by itself when this share of a wave failed again."),
        click.option("--per-second", type=click.FloatRange(min=0, min_open=True), help="At most so many."),
        click.option("--all-at-once", is_flag=True, help="No small waves first."),
        click.option("--reason", "-r", help="Why; it is kept in the audit log."),
    ):  # fmt: skip
        command = option(command)
    return destructive(command)


async def start(
    session: Session, connection: Connection, verb: Verb, query: grammar.Query, given: dict[str, Any]
) -> int:
    """Count, ask, start, and follow it if that was asked for."""
    count = await search.bulk_preview(connection, verb, query)
    consequence = f"{verb}: {count} {'job' if count.count == 1 else 'jobs'} that fit {query.text!r}."
    if not count.count:
        raise NotFoundError(f"No job fits {query.text!r} that one could {verb}.")
    if not session.confirm(consequence, yes=given["yes"], dry_run=given["dry_run"]):
        return 0
    ramp = Ramp(
        waves=() if given["all_at_once"] else Ramp().waves,
        per_s=given["per_second"],
        stop_share=given["stop_share"],
    )
    why = given["reason"] or "from the command line"
    bulk_id = await search.bulk_start(connection, verb, query, by=somebody(), why=why, ramp=ramp)
    await record(connection, f"bulk.{verb}", str(bulk_id), search=query.text, reason=why)
    if given["wait"]:
        return await follow(session, connection, bulk_id)
    if session.out.json:
        session.out.record(_row(await named(connection, str(bulk_id))))
    else:
        session.out.value("id", bulk_id)
    return 0
