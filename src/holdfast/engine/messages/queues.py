"""Send, read and manage messages and message queues. One function per SQL function.

Operations that can be part of the caller's transaction (send, archive, delete, set_vt) are a
`JsonStatement`: the same statement runs on our connections and on the caller's. Operations by receipt are
fenced: the database refuses with HF001 when the message was read again since. Operations by plain id are not
fenced.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal, TypeVar

import asyncpg
import msgspec

from holdfast import errors
from holdfast.engine.caller_connection import JsonStatement
from holdfast.engine.connection import Connection, Record
from holdfast.engine.json_rows import JsonObject, decode_object
from holdfast.model import Json, Message, MessageMetrics, MessagePlace, MessagePolicy, MessageQueue

T = TypeVar("T")
_json_decoder = msgspec.json.Decoder()
_ids_decoder = msgspec.json.Decoder(list[int])

_SEND_SQL = """
select coalesce(jsonb_agg(s.id), '[]')::text
from (select {}::jsonb as a) p,
lateral pgmq.send_batch(
  p.a ->> 'queue',
  array(select e.m from jsonb_array_elements(p.a -> 'bodies') with ordinality e (m, n) order by e.n),
  case when jsonb_typeof(p.a -> 'headers') = 'array' then array(
    select nullif(e.h, 'null') from jsonb_array_elements(p.a -> 'headers') with ordinality e (h, n)
    order by e.n) end,
  coalesce((p.a ->> 'visible_at')::timestamptz,
           holdfast.now() + make_interval(secs => (p.a ->> 'delay_s')::double precision), clock_timestamp())
) as s (id)
"""
# Operations by receipt and by id in one statement, so that either all happen or none.
_BY_RECEIPT_OR_ID = """
select to_jsonb(
  array(select * from {fenced}) || array(select * from {plain}))::text
from (select {{}}::jsonb as a) p
"""
_RECEIPTS_EXPRESSION = "array(select jsonb_array_elements_text(p.a -> 'receipts'))"
_IDS_EXPRESSION = "array(select e::bigint from jsonb_array_elements_text(p.a -> 'ids') e)"
_VT_EXPRESSION = "make_interval(secs => (p.a ->> 'vt_s')::double precision)"
_ARCHIVE_SQL = _BY_RECEIPT_OR_ID.format(
    fenced=f"holdfast.archive_messages(p.a ->> 'queue', {_RECEIPTS_EXPRESSION})",
    plain=f"pgmq.archive(p.a ->> 'queue', {_IDS_EXPRESSION})",
)
_DELETE_SQL = _BY_RECEIPT_OR_ID.format(
    fenced=f"holdfast.delete_messages(p.a ->> 'queue', {_RECEIPTS_EXPRESSION})",
    plain=f"pgmq.delete(p.a ->> 'queue', {_IDS_EXPRESSION})",
)
_SET_VT_SQL = _BY_RECEIPT_OR_ID.replace("select * from {plain}", "select v.msg_id from {plain} v").format(
    fenced=f"holdfast.set_message_vt(p.a ->> 'queue', {_RECEIPTS_EXPRESSION}, {_VT_EXPRESSION})",
    plain=f"pgmq.set_vt(p.a ->> 'queue', {_IDS_EXPRESSION}, holdfast.now() + {_VT_EXPRESSION})",
)

_MISSING_PARTMAN_FIX = (
    "Install the extension pg_partman, or create a queue without partitions, which stays fast too."
)

_READ_MESSAGES = "select * from holdfast.read_messages($1, $2, $3, $4)"
_POP_MESSAGES = "select *, null as receipt from pgmq.pop($1, $2)"
_PEEK_MESSAGES = """
select p.*, null as receipt, coalesce(e.error, p.headers #>> '{x-holdfast-dead,error}') as error, e.failed_at
from holdfast.peek_messages($1, $2, $3, $4) p
left join lateral holdfast.get_message_error($1, p.msg_id, p.enqueued_at) e on $3 = 'queue'
order by p.msg_id
"""


@contextmanager
def translate_queue_errors(queue: str) -> Generator[None]:
    """Convert database errors about a queue inside the block to exceptions of `holdfast.errors`."""
    try:
        yield
    except asyncpg.PostgresError as error:
        text = str(error.args[0] if error.args else error)
        translated = _translate_queue_error(queue, error.sqlstate or "", text)
        if translated is None:
            raise
        raise translated from error


def _translate_queue_error(queue: str, code: str, message: str) -> errors.HoldfastError | None:
    if code in {"42P01", "HF002"}:
        return errors.NotFoundError(
            f"Message queue {queue!r} does not exist.",
            fix=f"Create it with `holdfast queue create {queue}` or client.queues.create.",
            field="queue",
        )
    if code in {"3F000", "42883"}:
        return errors.SchemaMissingError(
            "Message queues are not installed in this database.", fix="Run `holdfast migrate`."
        )
    if code == "P0001":  # an error of the pgmq contract
        fix = _MISSING_PARTMAN_FIX if message.startswith("pg_partman is required") else None
        return errors.InvalidError(f"Queue {queue!r}: {message}.", fix=fix, field="queue")
    if code == "55P03":
        return errors.ConflictError(
            f"Message queue {queue!r} is in use.", fix="Try again when its readers have ended.", field="queue"
        )
    return None


def _build_ids_statement(queue: str, statement: str, **argument: Json) -> JsonStatement[list[int]]:
    body = msgspec.json.encode({"queue": queue, **argument})
    return JsonStatement(
        statement,
        body,
        _ids_decoder.decode,
        lambda code, message: _translate_queue_error(queue, code, message),
    )


async def run_json_statement(connection: Connection, statement: JsonStatement[T]) -> T:
    """Run a statement on one of our own connections and return its decoded result."""
    try:
        response = await connection.fetchval(statement.statement.format("$1"), statement.argument.decode())
    except asyncpg.PostgresError as error:
        translated = statement.translate_error(
            error.sqlstate or "", str(error.args[0] if error.args else error)
        )
        if translated is None:
            raise
        raise translated from error
    return statement.decode(response)


def build_send_statement(
    queue: str,
    bodies: Sequence[bytes],
    *,
    headers: Sequence[bytes | None] | None = None,
    delay: timedelta | datetime | None = None,
) -> JsonStatement[list[int]]:
    """Build the statement that sends messages and returns their ids. `bodies` and `headers` are JSON."""
    return _build_ids_statement(
        queue,
        _SEND_SQL,
        bodies=[msgspec.Raw(body) for body in bodies],
        headers=None if headers is None else [None if h is None else msgspec.Raw(h) for h in headers],
        visible_at=delay if isinstance(delay, datetime) else None,
        delay_s=delay.total_seconds() if isinstance(delay, timedelta) else None,
    )


def build_archive_statement(
    queue: str, receipts: Sequence[str], ids: Sequence[int]
) -> JsonStatement[list[int]]:
    """Build the statement that archives messages by receipt or by id and returns their ids."""
    return _build_ids_statement(queue, _ARCHIVE_SQL, receipts=receipts, ids=ids)


def build_delete_statement(
    queue: str, receipts: Sequence[str], ids: Sequence[int]
) -> JsonStatement[list[int]]:
    """Build the statement that deletes messages by receipt or by id and returns their ids."""
    return _build_ids_statement(queue, _DELETE_SQL, receipts=receipts, ids=ids)


def build_set_vt_statement(
    queue: str, receipts: Sequence[str], ids: Sequence[int], vt: timedelta
) -> JsonStatement[list[int]]:
    """Build the statement that hides messages for `vt` from now, by receipt or by id."""
    return _build_ids_statement(queue, _SET_VT_SQL, receipts=receipts, ids=ids, vt_s=vt.total_seconds())


def build_finish_statement(
    queue: str, receipt: str, how: Literal["archive", "delete"]
) -> JsonStatement[None]:
    """Build the statement that archives or deletes a message, if it was not read again since."""
    build_statement = build_archive_statement if how == "archive" else build_delete_statement
    statement = build_statement(queue, [receipt], [])
    return JsonStatement(statement.statement, statement.argument, lambda _: None, statement.translate_error)


async def create_message_queue(connection: Connection, queue: str, *, unlogged: bool = False) -> None:
    """Create a message queue unless it exists."""
    with translate_queue_errors(queue):
        await connection.execute(f"select pgmq.create{'_unlogged' if unlogged else ''}($1)", queue)


async def create_partitioned_message_queue(
    connection: Connection, queue: str, *, interval: str, retention: str, premake: int
) -> None:
    """Create a partitioned message queue. Requires the extension pg_partman."""
    with translate_queue_errors(queue):
        await connection.execute(
            "select pgmq.create_partitioned($1, $2, $3, $4)", queue, interval, retention, premake
        )


async def message_queue_exists(connection: Connection, queue: str) -> bool:
    """Return whether a message queue exists."""
    with translate_queue_errors(queue):
        exists: bool = await connection.fetchval("select holdfast.message_queue_exists($1)", queue)
    return exists


async def drop_message_queue(connection: Connection, queue: str) -> bool:
    """Drop a message queue with its messages and archive. Return False if it does not exist."""
    with translate_queue_errors(queue):
        dropped: bool = await connection.fetchval("select pgmq.drop_queue($1)", queue)
    return dropped


async def purge_message_queue(connection: Connection, queue: str) -> int:
    """Delete all messages of a queue and return their number."""
    with translate_queue_errors(queue):
        count: int = await connection.fetchval("select pgmq.purge_queue($1)", queue)
    return count


async def list_message_queues(connection: Connection) -> list[MessageQueue]:
    """List message queues by name."""
    with translate_queue_errors(""):
        rows = await connection.fetch("select * from pgmq.list_queues() order by queue_name")
    return [MessageQueue(name=r[0], partitioned=r[1], unlogged=r[2], created_at=r[3]) for r in rows]


async def read_messages(
    connection: Connection, queue: str, *, vt: timedelta | None, qty: int, where: bytes | None = None
) -> list[Message[Json]]:
    """Read messages with receipts. The bodies must contain the JSON `where`."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(
            _READ_MESSAGES, queue, vt, qty, "{}" if where is None else where.decode()
        )
    return [message_from_row(queue, row) for row in rows]


async def pop_messages(connection: Connection, queue: str, qty: int) -> list[Message[Json]]:
    """Read and delete messages."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(_POP_MESSAGES, queue, qty)
    return [message_from_row(queue, row) for row in rows]


async def peek_messages(
    connection: Connection, queue: str, qty: int, place: MessagePlace, after: int | None
) -> list[Message[Json]]:
    """Return messages of a queue, archive or dead letters without changing their visibility."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(_PEEK_MESSAGES, queue, qty, place, after)
    return [
        replace(message_from_row(queue, row), error=row["error"], failed_at=row["failed_at"]) for row in rows
    ]


def message_from_row(queue: str, row: Record) -> Message[Json]:
    """Build a message from a row of a read."""
    body, headers = row["message"], row["headers"]
    return Message(
        id=row["msg_id"],
        queue=queue,
        body=None if body is None else _json_decoder.decode(body),
        headers=None if headers is None else _json_decoder.decode(headers),
        reads=row["read_ct"],
        sent_at=row["enqueued_at"],
        read_at=row["last_read_at"],
        visible_at=row["vt"],
        receipt=row["receipt"],
    )


async def requeue_messages(
    connection: Connection, queue: str, place: MessagePlace, ids: Sequence[int] | None, limit: int
) -> dict[int, int]:
    """Move archived or dead messages back into the queue. Return the new id of each old id."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(
            "select * from holdfast.requeue_messages($1, $2, $3, $4)",
            queue, place, None if ids is None else list(ids), limit,
        )  # fmt: skip
    return {row["old_id"]: row["new_id"] for row in rows}


async def enable_message_wakeups(connection: Connection, queue: str) -> bool:
    """Make sent messages wake up sleeping readers. Return False if another role owns the queue."""
    try:
        with translate_queue_errors(queue):
            await connection.execute("select holdfast.enable_message_wakeups($1)", queue)
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True


async def list_message_metrics(connection: Connection, queue: str | None = None) -> list[MessageMetrics]:
    """Return the metrics of one message queue, or of all message queues."""
    with translate_queue_errors(queue or ""):
        rows = await connection.fetch("select * from holdfast.list_message_metrics($1)", queue)
    return [MessageMetrics(queue=row["queue_name"], **dict(list(row.items())[1:])) for row in rows]


async def get_message_policy(connection: Connection, queue: str) -> MessagePolicy:
    """Return the policy of a message queue. Raise NotFoundError if the queue does not exist."""
    with translate_queue_errors(queue):
        await connection.execute("select holdfast.get_message_table_names($1)", queue)
        row = await connection.fetchrow("select * from holdfast.get_message_policy($1)", queue)
    assert row is not None  # noqa: S101  (the function returns one row)
    return _policy_from_row(row)


async def put_message_policy(connection: Connection, queue: str, policy: MessagePolicy) -> MessagePolicy:
    """Replace the policy of a message queue."""
    with translate_queue_errors(queue):
        row = await connection.fetchrow(
            "select * from holdfast.put_message_policy($1, $2, $3, $4, $5, $6, $7)",
            queue, policy.max_reads, policy.dead_letters, policy.backoff, policy.backoff_cap,
            policy.archive_retention, policy.vt,
        )  # fmt: skip
    assert row is not None  # noqa: S101  (the function returns one row)
    return _policy_from_row(row)


def _policy_from_row(row: Record) -> MessagePolicy:
    return MessagePolicy(
        vt=row["vt"],
        max_reads=row["max_reads"],
        backoff=row["backoff"],
        backoff_cap=row["backoff_cap"],
        dead_letters=row["dead_letter_queue"],
        archive_retention=row["archive_retention"],
    )


async def tick_messages(connection: Connection, limit: int = 1000) -> JsonObject:
    """Run one round of message maintenance: prune archives and dead-letter exhausted messages."""
    return decode_object(await connection.fetchval("select holdfast.tick_messages($1)", limit))
