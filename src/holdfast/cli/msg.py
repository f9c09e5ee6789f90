"""`holdfast msg`: send, read and look at messages, finish them, bring them back."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.cli import values
from holdfast.cli.queue import client_of
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import MOMENT, SPAN
from holdfast.client import Client
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import Message, MessagePlace

COLUMNS = ["id", "reads", "sent_at", "visible_at", "body"]
QTY = click.IntRange(1, 100_000)


@click.group()
def msg() -> None:
    """Messages: send, read, look, finish, bring back."""


def _row(message: Message[Any]) -> dict[str, Any]:
    names = (
        "id",
        "reads",
        "sent_at",
        "read_at",
        "visible_at",
        "body",
        "headers",
        "receipt",
        "error",
        "failed_at",
    )
    return {name: getattr(message, name) for name in names}


@msg.command()
@click.argument("queue")
@click.argument("body", nargs=-1)
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=TEXT", help="name=text or name:=json."
)
@click.option("--delay", type=SPAN, help="Hidden for so long, as in 90s or 5m.")
@click.option("--at", type=MOMENT, help="Hidden until then.")
@click.option("--lines", is_flag=True, help="Each line of standard input is a message.")
@json_option
@pass_session
def send(
    session: Session,
    queue: str,
    body: tuple[str, ...],
    headers: tuple[str, ...],
    delay: timedelta | None,
    at: datetime | None,
    lines: bool,
) -> None:
    """Send BODY to QUEUE: JSON, - for standard input, @file, or pairs like name=text count:=3."""
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at exclude each other.")
    if lines == bool(body):
        raise click.UsageError("Give a body, or --lines and the bodies on standard input.")
    bodies = _lines() if lines else [values.body_of(body)]
    header = values.pairs(headers) if headers else None

    async def work() -> list[int]:
        async with client_of(session) as client:
            return await client.queues.send_batch(
                queue, bodies, headers=[header] * len(bodies), delay=delay or at
            )

    for sent in session.run(work()):
        session.out.value("id", sent)


def _lines() -> list[Any]:
    found = [values.parsed(line, f"line {n}") for n, line in enumerate(sys.stdin, 1) if line.strip()]
    if not found:
        raise InvalidError("Standard input is empty.", fix="Write one JSON body a line.", field="body")
    return found


@msg.command()
@click.argument("queue")
@click.option("--qty", "-n", type=QTY, default=1, show_default=True, help="How many at most.")
@click.option("--vt", type=SPAN, help="How long others do not see them (default: the queue's policy).")
@click.option("--where", metavar="JSON", help="Only messages whose body contains this.")
@click.option("--wait", type=SPAN, help="Wait so long for the first.")
@json_option
@pass_session
def read(
    session: Session, queue: str, qty: int, vt: timedelta | None, where: str | None, wait: timedelta | None
) -> None:
    """Take messages; others do not see them for a while. The receipt archives, deletes and extends them."""
    condition = None if where is None else values.parsed(where, "--where")

    async def work() -> list[Message[Any]]:
        async with client_of(session) as client:
            return await client.queues.read(queue, qty=qty, vt=vt, where=condition, wait=wait)

    session.out.rows([_row(each) for each in session.run(work())], [*COLUMNS, "receipt"])


def _looking(
    session: Session, queue: str, qty: int, place: MessagePlace, after: int | None
) -> list[Message[Any]]:
    async def work() -> list[Message[Any]]:
        async with client_of(session) as client:
            return await client.queues.peek(queue, qty=qty, place=place, after=after)

    return session.run(work())


@msg.command()
@click.argument("queue")
@click.option("--qty", "-n", type=QTY, default=10, show_default=True, help="How many at most.")
@click.option("--after", type=int, metavar="ID", help="Only those behind this id.")
@click.option("--archive", is_flag=True, help="Look into the archive.")
@json_option
@pass_session
def peek(session: Session, queue: str, qty: int, after: int | None, archive: bool) -> None:
    """Look at messages without taking them; with the error of those that failed and are retried."""
    found = _looking(session, queue, qty, "archive" if archive else "queue", after)
    columns = [*COLUMNS, "error"] if any(each.error for each in found) else COLUMNS
    session.out.rows([_row(each) for each in found], columns)


@msg.command()
@click.argument("queue")
@click.option("--qty", "-n", type=QTY, default=10, show_default=True, help="How many at most.")
@click.option("--after", type=int, metavar="ID", help="Only those behind this id.")
@json_option
@pass_session
def dead(session: Session, queue: str, qty: int, after: int | None) -> None:
    """Look at the dead letters of a queue, with the errors that brought them there."""
    rows = [_grave(each) for each in _looking(session, queue, qty, "dead", after)]
    session.out.rows(rows, ["id", "died_at", "reads", "error", "body"])


def _grave(message: Message[Any]) -> dict[str, Any]:
    note = message.headers["x-holdfast-dead"]
    told = {name: note.get(name) for name in ("died_at", "error", "headers")}
    return {
        "id": message.id,
        "was": note.get("msg_id"),
        "reads": note.get("read_ct"),
        **told,
        "body": message.body,
    }


Act = Callable[[Client, Sequence[Message[None] | int]], Awaitable[list[int]]]


def _act(session: Session, queue: str, ids: Sequence[str], act: Act, done: str) -> None:
    """Do it to all, say what happened, and complain about those that were not there."""
    chosen = [values.message_named(queue, each) for each in ids]

    async def work() -> list[int]:
        async with client_of(session) as client:
            return await act(client, chosen)

    found = session.run(work())
    for each in found:
        session.out.value("id", each)
    wanted = {each if isinstance(each, int) else each.id for each in chosen}
    missing = sorted(wanted - set(found))
    if missing:
        shown = ", ".join(str(each) for each in missing)
        raise NotFoundError(
            f"Not in queue {queue}: {shown}. The others were {done}.", fix=f"See `holdfast msg peek {queue}`."
        )


@msg.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True)
@json_option
@pass_session
def archive(session: Session, queue: str, ids: tuple[str, ...]) -> None:
    """Move messages to the archive, by id or by the receipt of a read."""
    _act(session, queue, ids, lambda client, chosen: client.queues.archive(queue, chosen), "archived")


@msg.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True)
@destructive
@json_option
@pass_session
def delete(session: Session, queue: str, ids: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Delete messages, by id or by the receipt of a read."""
    if session.confirm(f"{len(ids)} messages of queue {queue} are deleted.", yes=yes, dry_run=dry_run):
        _act(session, queue, ids, lambda client, chosen: client.queues.delete(queue, chosen), "deleted")


@msg.command("set-vt")
@click.argument("queue")
@click.argument("vt", type=SPAN)
@click.argument("ids", nargs=-1, required=True)
@json_option
@pass_session
def set_vt(session: Session, queue: str, vt: timedelta, ids: tuple[str, ...]) -> None:
    """Hide messages for VT from now; 0s shows them at once."""
    _act(session, queue, ids, lambda client, chosen: client.queues.set_vt(queue, chosen, vt), "changed")


@msg.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, type=int)
@click.option("--archive", is_flag=True, help="From the archive instead of the dead letters.")
@click.option("--limit", type=QTY, default=1000, show_default=True, help="Without ids: the oldest so many.")
@json_option
@pass_session
def requeue(session: Session, queue: str, ids: tuple[int, ...], archive: bool, limit: int) -> None:
    """Put dead letters or archived messages back into their queue, as new ones."""

    async def work() -> dict[int, int]:
        async with client_of(session) as client:
            place: MessagePlace = "archive" if archive else "dead"
            return await client.queues.requeue(queue, ids or None, place=place, limit=limit)

    back = session.run(work())
    session.out.rows([{"old_id": old, "new_id": new} for old, new in back.items()], ["old_id", "new_id"])
    missing = sorted(set(ids) - set(back))
    if missing:
        raise NotFoundError(f"Not there: {', '.join(str(each) for each in missing)}.")
