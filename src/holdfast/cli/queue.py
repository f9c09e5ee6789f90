"""`holdfast queue`: message queues, their figures and their policies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import click
import msgspec

from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.client import Client
from holdfast.client.queues import PolicyChanges
from holdfast.errors import NotFoundError
from holdfast.model import MessageMetrics, MessagePolicy

NOTHING = "none"  # on the command line: take a limit away


@click.group()
def queue() -> None:
    """Message queues: make, list, look at, empty and remove them."""


def client_of(session: Session) -> Client:
    return Client(settings=session.settings)


@queue.command("list")
@json_option
@pass_session
def list_queues(session: Session) -> None:
    """List the queues with their figures."""

    async def work() -> list[dict[str, Any]]:
        async with client_of(session) as client:
            figures = {found.queue: found for found in await client.queues.metrics_all()}
            listed = await client.queues.list()
        return [
            {**_figures(figures[q.name]), "unlogged": q.unlogged, "partitioned": q.partitioned}
            for q in listed
            if q.name in figures
        ]

    columns = ["queue", "visible", "in_flight", "delayed", "dead", "archived", "oldest_age"]
    session.out.rows(session.run(work()), columns)


def _figures(found: MessageMetrics) -> dict[str, Any]:
    return {**msgspec.structs.asdict(found), "oldest_age": _span(found.oldest_age)}


def _span(span: timedelta | None) -> str | None:
    """As it is written on the command line."""
    return None if span is None else f"{span.total_seconds():g}s"


def _shown(policy: MessagePolicy) -> dict[str, Any]:
    values = msgspec.structs.asdict(policy)
    return {name: _span(v) if isinstance(v, timedelta) else v for name, v in values.items()}


@queue.command()
@click.argument("name")
@json_option
@pass_session
def show(session: Session, name: str) -> None:
    """Show the figures and the policy of one queue."""

    async def work() -> dict[str, Any]:
        async with client_of(session) as client:
            return {
                **_figures(await client.queues.metrics(name)),
                "policy": _shown(await client.queues.policy(name)),
            }

    session.out.record(session.run(work()))


@queue.command()
@click.argument("name")
@click.option("--unlogged", is_flag=True, help="Faster, and empty after a crash of the server.")
@click.option("--partition", metavar="IDS|SPAN", help="In partitions of so many ids or so much time.")
@click.option("--retention", metavar="IDS|SPAN", default="100000", show_default=True,
              help="With --partition: how much is kept.")  # fmt: skip
@pass_session
def create(session: Session, name: str, unlogged: bool, partition: str | None, retention: str) -> None:
    """Make a queue; one that is there stays as it is."""
    if partition and unlogged:
        raise click.UsageError("--unlogged and --partition exclude each other.")

    async def work() -> None:
        async with client_of(session) as client:
            if partition:
                await client.queues.create_partitioned(
                    name, interval=_extent(partition), retention=_extent(retention)
                )
            else:
                await client.queues.create(name, unlogged=unlogged)

    session.run(work())
    session.out.line(f"Queue {name} is there.")


def _extent(text: str) -> int | timedelta:
    return int(text) if text.isdecimal() else SPAN.convert(text, None, None)


@queue.command()
@click.argument("name")
@destructive
@pass_session
def drop(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Remove a queue with its messages and its archive."""

    async def work() -> None:
        async with client_of(session) as client:
            found = await client.queues.metrics(name)
            consequence = (
                f"Queue {name} goes, with {found.total} messages and {found.archived} archived ones."
            )
            if session.confirm(consequence, yes=yes, dry_run=dry_run):
                if not await client.queues.drop(name):
                    raise NotFoundError(f"There is no message queue {name!r}.", field="queue")
                session.out.line(f"Queue {name} is gone.")

    session.run(work())


@queue.command()
@click.argument("name")
@destructive
@pass_session
def purge(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Delete every message of a queue; its archive stays."""

    async def work() -> None:
        async with client_of(session) as client:
            found = await client.queues.metrics(name)
            consequence = f"All {found.total} messages of queue {name} go, read or not."
            if session.confirm(consequence, yes=yes, dry_run=dry_run):
                session.out.line(f"{await client.queues.purge(name)} messages deleted.")

    session.run(work())


@queue.command()
@click.argument("name")
@click.option("--vt", type=SPAN, help="How long a read hides a message, unless the reader says.")
@click.option("--max-reads", metavar="N|none", help="After so many reads a message is dead.")
@click.option("--backoff", type=SPAN, help="Rest after the first failure; doubles with each.")
@click.option("--backoff-cap", type=SPAN, help="The longest rest.")
@click.option("--dead-letters", metavar="QUEUE|none", help="Where the dead go; none: to the archive.")
@click.option("--archive-retention", metavar="SPAN|none", help="How long the archive lasts; none: for ever.")
@json_option
@pass_session
def policy(session: Session, /, name: str, **given: Any) -> None:
    """Show the policy of a queue, or change what is given of it."""
    changes = _changes({option: value for option, value in given.items() if value is not None})

    async def work() -> MessagePolicy:
        async with client_of(session) as client:
            if changes:
                return await client.queues.put_policy(name, **changes)
            return await client.queues.policy(name)

    session.out.record({"queue": name, **_shown(session.run(work()))})


def _changes(given: dict[str, Any]) -> PolicyChanges:
    for option in ("max_reads", "dead_letters", "archive_retention"):
        if given.get(option) == NOTHING:
            given[option] = None
    if given.get("max_reads") is not None:
        given["max_reads"] = click.INT.convert(given["max_reads"], None, None)
    if given.get("archive_retention") is not None:
        given["archive_retention"] = SPAN.convert(given["archive_retention"], None, None)
    return cast("PolicyChanges", given)
