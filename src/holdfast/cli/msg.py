"""`holdfast msg`: send, read, archive, delete and requeue messages of a message queue."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import click

from holdfast.cli import parameters
from holdfast.cli.actor import record_client_audit_event
from holdfast.cli.parameters import DURATION, TIMESTAMP
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session
from holdfast.client import Client
from holdfast.errors import InvalidError, NotFoundError
from holdfast.formatting import format_count
from holdfast.model import Message, MessagePlace

MESSAGE_COLUMNS = ["id", "reads", "sent_at", "visible_at", "body"]
MESSAGE_FIELDS = (
    "id", "reads", "sent_at", "read_at", "visible_at", "body", "headers", "receipt", "error", "failed_at",
)  # fmt: skip
MESSAGE_LIMIT_RANGE = click.IntRange(1, 100_000)
MessageAction: TypeAlias = Callable[[Client, Sequence[Message[None] | int]], Awaitable[list[int]]]


@click.group("msg")
def msg_command() -> None:
    """Send, read and manage messages in message queues.

    `holdfast queue` creates and configures the queues themselves.
    """


def _format_message(message: Message[Any]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in MESSAGE_FIELDS}


@msg_command.command("send")
@click.argument("queue")
@click.argument("body", nargs=-1)
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    metavar="NAME=TEXT",
    help="Add a header to the message: name=text or name:=json. Repeat the option to add more "
    "headers. Default: none.",
)
@click.option(
    "--delay",
    type=DURATION,
    help="Deliver the message after this duration, such as 90s or 5m. Default: at once.",
)
@click.option(
    "--at",
    type=TIMESTAMP,
    help="Deliver the message at this time, such as 2026-05-01T12:00:00Z. Default: at once.",
)
@click.option(
    "--lines",
    is_flag=True,
    help="Send each line of standard input, a JSON value, as one message. Default: send BODY.",
)
@json_option
@pass_session
def send_messages(session: CliSession, /, queue: str, body: tuple[str, ...], **options: Any) -> None:
    """Send a message with BODY to QUEUE and print its id.

    BODY is JSON, @file, - for standard input, or pairs such as name=text count:=3.

    Example: holdfast msg send mail to=ann@e.example tries:=3
    """
    delay: timedelta | None = options["delay"]
    at: datetime | None = options["at"]
    if delay is not None and at is not None:
        raise click.UsageError("Use either --delay or --at, not both.")
    if options["lines"] == bool(body):
        raise click.UsageError("Give either a BODY, or --lines with the bodies on standard input.")
    bodies = _read_message_bodies() if options["lines"] else [parameters.parse_json_or_pairs(body)]
    headers = parameters.parse_pairs(options["headers"]) if options["headers"] else None

    async def send_bodies() -> list[int]:
        async with session.client() as client:
            return await client.queues.send_batch(
                queue, bodies, headers=[headers] * len(bodies), delay=delay or at
            )

    for message_id in session.run_async(send_bodies()):
        session.output.print_value("id", message_id)


def _read_message_bodies() -> list[Any]:
    bodies = [
        parameters.parse_json(line, f"Line {number}")
        for number, line in enumerate(sys.stdin, 1)
        if line.strip()
    ]
    if not bodies:
        raise InvalidError("Standard input is empty.", fix="Write one JSON body per line.", field="body")
    return bodies


@msg_command.command("read")
@click.argument("queue")
@click.option(
    "--limit",
    "-n",
    type=MESSAGE_LIMIT_RANGE,
    default=1,
    show_default=True,
    help="Read at most this many messages.",
)
@click.option(
    "--vt",
    type=DURATION,
    help="Hide the messages from other readers for this duration, the visibility timeout. Default: "
    "the one in the queue's policy.",
)
@click.option(
    "--where",
    metavar="JSON",
    help='Read only messages whose body contains this JSON value, such as {"type": "mail"}. '
    "Default: all messages.",
)
@click.option(
    "--wait",
    type=DURATION,
    help="Wait up to this duration for a message if the queue is empty. Default: do not wait.",
)
@json_option
@pass_session
def read_messages(
    session: CliSession,
    queue: str,
    limit: int,
    vt: timedelta | None,
    where: str | None,
    wait: timedelta | None,
) -> None:
    """Read messages of a queue and hide them from other readers.

    The messages are hidden until the visibility timeout ends. Use the printed receipt to archive or
    delete a message, or to change its visibility timeout.
    """
    condition = None if where is None else parameters.parse_json(where, "--where")

    async def fetch_readable_messages() -> list[Message[Any]]:
        async with session.client() as client:
            return await client.queues.read(queue, qty=limit, vt=vt, where=condition, wait=wait)

    rows = [_format_message(message) for message in session.run_async(fetch_readable_messages())]
    session.output.print_rows(rows, [*MESSAGE_COLUMNS, "receipt"])


def _fetch_messages(
    session: CliSession, queue: str, limit: int, place: MessagePlace, after: int | None
) -> list[Message[Any]]:
    async def peek_queue() -> list[Message[Any]]:
        async with session.client() as client:
            return await client.queues.peek(queue, qty=limit, place=place, after=after)

    return session.run_async(peek_queue())


def message_page_options(command: Any) -> Any:
    """Add the command-line options --limit and --after, which select a page of messages."""
    command = click.option(
        "--after",
        type=int,
        metavar="ID",
        help="Show only messages with an id greater than this id, to get the next page. Default: start "
        "with the oldest message.",
    )(command)
    return click.option(
        "--limit",
        "-n",
        type=MESSAGE_LIMIT_RANGE,
        default=10,
        show_default=True,
        help="Show at most this many messages.",
    )(command)


@msg_command.command("peek")
@click.argument("queue")
@message_page_options
@click.option("--archive", is_flag=True, help="Show archived messages. Default: messages in the queue.")
@json_option
@pass_session
def peek_messages(session: CliSession, queue: str, limit: int, after: int | None, archive: bool) -> None:
    """Show messages without hiding them from readers.

    The oldest message comes first.
    """
    messages = _fetch_messages(session, queue, limit, "archive" if archive else "queue", after)
    columns = [*MESSAGE_COLUMNS, "error"] if any(message.error for message in messages) else MESSAGE_COLUMNS
    session.output.print_rows([_format_message(message) for message in messages], columns)


@msg_command.command("dead-letters")
@click.argument("queue")
@message_page_options
@json_option
@pass_session
def list_dead_letters(session: CliSession, queue: str, limit: int, after: int | None) -> None:
    """Show the dead letters of a message queue, oldest first."""
    rows = [_format_dead_letter(message) for message in _fetch_messages(session, queue, limit, "dead", after)]
    session.output.print_rows(rows, ["id", "died_at", "reads", "error", "body"])


def _format_dead_letter(message: Message[Any]) -> dict[str, Any]:
    origin = message.headers["x-holdfast-dead"]
    return {
        "id": message.id,
        "original_id": origin.get("msg_id"),
        "reads": origin.get("read_ct"),
        "died_at": origin.get("died_at"),
        "error": origin.get("error"),
        "headers": origin.get("headers"),
        "body": message.body,
    }


def _apply_to_messages(
    session: CliSession, queue: str, references: Sequence[str], act: MessageAction, done: str
) -> None:
    """Run `act` on messages and print the ids of changed messages. Raise `NotFoundError` for others."""
    targets = [parameters.parse_message_reference(queue, reference) for reference in references]

    async def apply_action() -> list[int]:
        async with session.client() as client:
            return await act(client, targets)

    changed = session.run_async(apply_action())
    for message_id in changed:
        session.output.print_value("id", message_id)
    requested = {target if isinstance(target, int) else target.id for target in targets}
    missing = sorted(requested - set(changed))
    if missing:
        listed = ", ".join(str(message_id) for message_id in missing)
        raise NotFoundError(
            f"These messages are not in queue {queue!r}: {listed}. The others were {done}.",
            fix=f"See `holdfast msg peek {queue}`. A receipt is valid until its message is read again.",
        )


references_argument = click.argument("references", metavar="ID|RECEIPT...", nargs=-1, required=True)


@msg_command.command("archive")
@click.argument("queue")
@references_argument
@json_option
@pass_session
def archive_messages(session: CliSession, queue: str, references: tuple[str, ...]) -> None:
    """Move messages to the archive, by id or receipt."""
    _apply_to_messages(
        session, queue, references, lambda client, targets: client.queues.archive(queue, targets), "archived"
    )


@msg_command.command("delete")
@click.argument("queue")
@references_argument
@confirmation_options
@json_option
@pass_session
def delete_messages(
    session: CliSession, queue: str, references: tuple[str, ...], yes: bool, dry_run: bool
) -> None:
    """Delete messages, by id or receipt."""
    consequence = f"This deletes {format_count(len(references), 'message')} of queue {queue}."
    if session.confirm(consequence, yes=yes, dry_run=dry_run):
        _apply_to_messages(
            session,
            queue,
            references,
            lambda client, targets: client.queues.delete(queue, targets),
            "deleted",
        )


@msg_command.command("set-vt")
@click.argument("queue")
@click.argument("vt", type=DURATION, metavar="DURATION")
@references_argument
@json_option
@pass_session
def set_visibility_timeout(
    session: CliSession, queue: str, vt: timedelta, references: tuple[str, ...]
) -> None:
    """Hide messages for DURATION from now, by id or receipt. 0s makes them visible at once."""
    _apply_to_messages(
        session,
        queue,
        references,
        lambda client, targets: client.queues.set_vt(queue, targets, vt),
        "changed",
    )


@msg_command.command("requeue")
@click.argument("queue")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=int)
@click.option(
    "--archive",
    is_flag=True,
    help="Put archived messages back into the queue. Default: put dead letters back.",
)
@click.option(
    "--limit",
    "-n",
    type=MESSAGE_LIMIT_RANGE,
    default=1000,
    show_default=True,
    help="If no ID is given, put at most this many messages back into the queue, oldest first.",
)
@json_option
@pass_session
def requeue_messages(
    session: CliSession, queue: str, ids: tuple[int, ...], archive: bool, limit: int
) -> None:
    """Put dead letters back into their queue.

    They become new messages. --archive puts archived messages back instead.
    """

    async def requeue_by_id() -> dict[int, int]:
        async with session.client() as client:
            place: MessagePlace = "archive" if archive else "dead"
            new_ids = await client.queues.requeue(queue, ids or None, place=place, limit=limit)
            await record_client_audit_event(
                client, "message.requeue", queue, place=place, messages=len(new_ids)
            )
            return new_ids

    new_ids = session.run_async(requeue_by_id())
    rows = [{"old_id": old_id, "new_id": new_id} for old_id, new_id in new_ids.items()]
    session.output.print_rows(rows, ["old_id", "new_id"])
    missing = sorted(set(ids) - set(new_ids))
    if missing:
        place = "archive" if archive else "dead letters"
        listed = ", ".join(str(message_id) for message_id in missing)
        raise NotFoundError(f"These messages are not in the {place} of queue {queue!r}: {listed}.")
