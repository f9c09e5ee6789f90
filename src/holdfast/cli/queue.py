"""`holdfast queue`: every queue by its name, whether tasks wait in it, messages, or both.

One name is one queue to people. `list` and `show` tell of both sides; `pause`, `resume`, `limit`, `drain` and
`scale` (queue_act.py) are about tasks; `create`, `drop`, `purge` and `policy` are about messages.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, cast

import click
import msgspec

from holdfast.cli import words
from holdfast.cli.naming import complete_queue
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.client import Client
from holdfast.client.messages.queues import PolicyChanges
from holdfast.engine import operate
from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import MessageMetrics, MessagePolicy

NOTHING = "none"  # on the command line: take a limit away


@click.group()
def queue() -> None:
    """Queues: of tasks (pause, limit, drain, scale) and of messages (create, policy, purge, drop)."""


def client_of(session: Session) -> Client:
    return Client(settings=session.settings)


COLUMNS = ["queue", "kind", "state", "ready", "running", "delayed", "oldest", "dead", "workers"]
Kind = Literal["tasks", "messages"]


@queue.command("list")
@click.option("--kind", type=click.Choice(["tasks", "messages"]), help="Only these.")
@json_option
@pass_session
def list_queues(session: Session, kind: Kind | None) -> None:
    """List the queues with their figures. A name with tasks and with messages has two lines."""

    async def work() -> list[dict[str, Any]]:
        async with client_of(session) as client:
            tasks = await _of_tasks(client, None) if kind != "messages" else []
            messages = await _of_messages(client) if kind != "tasks" else []
        return sorted(tasks + messages, key=lambda row: (row["queue"].lower(), row["kind"] == "messages"))

    found = session.run(work())
    session.out.rows(found if session.out.json else [_row(each) for each in found], COLUMNS)


async def _of_tasks(client: Client, name: str | None) -> list[dict[str, Any]]:
    async with (await client.open()).connection() as connection:
        return [{"kind": "tasks", **row} for row in await operate.task_queues(connection, name)]


async def _of_messages(client: Client) -> list[dict[str, Any]]:
    figures = {found.queue: found for found in await client.queues.metrics_all()}
    return [
        {
            "kind": "messages",
            **_figures(figures[q.name]),
            "unlogged": q.unlogged,
            "partitioned": q.partitioned,
        }
        for q in await client.queues.list()
        if q.name in figures
    ]


def _row(found: dict[str, Any]) -> dict[str, Any]:
    """The same columns for both kinds: what can be taken, what is taken, what comes later."""
    if found["kind"] == "messages":
        oldest = found["oldest_age"]
        figures = {"ready": found["visible"], "running": found["in_flight"], "oldest": oldest}
        return {**found, "state": "open", **figures}
    paused = found.get("paused_at")
    alone = found["ready"] and not found["workers"]
    return {
        **found,
        "state": _paused(found) if paused else "open, nobody serves it" if alone else "open",
        "delayed": found["scheduled"],
        "oldest": words.span(found["oldest_s"]) if found["ready"] else None,
    }


def _paused(found: dict[str, Any]) -> str:
    until = found.get("paused_until")
    why = f": {words.clean(found['paused_why'], 60)}" if found.get("paused_why") else ""
    return f"paused by {found['paused_by']}{f', ends {words.until(until)}' if until else ''}{why}"


def _figures(found: MessageMetrics) -> dict[str, Any]:
    return {**msgspec.structs.asdict(found), "oldest_age": _span(found.oldest_age)}


def _span(span: timedelta | None) -> str | None:
    """As it is written on the command line."""
    return None if span is None else f"{span.total_seconds():g}s"


def _shown(policy: MessagePolicy) -> dict[str, Any]:
    values = msgspec.structs.asdict(policy)
    return {name: _span(v) if isinstance(v, timedelta) else v for name, v in values.items()}


@queue.command()
@click.argument("name", shell_complete=complete_queue)
@json_option
@pass_session
def show(session: Session, name: str) -> None:
    """Show all about one queue: what waits, who serves it, limits, the policy of its messages."""

    async def work() -> list[dict[str, Any]]:
        async with client_of(session) as client:
            found = await _of_tasks(client, name)
            try:
                policy = _shown(await client.queues.policy(name))
                messages = _figures(await client.queues.metrics(name))
            except (NotFoundError, InvalidError):
                if not found:
                    raise
                return found
            return [*found, {"kind": "messages", **messages, "policy": policy}]

    for found in session.run(work()):
        session.out.record(found)


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
@click.argument("name", shell_complete=complete_queue)
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
@click.argument("name", shell_complete=complete_queue)
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
