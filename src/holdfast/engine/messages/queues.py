"""Message queues: one coroutine per SQL function.

What may be part of somebody else's transaction (send, archive, delete, set_vt) is a `borrowed.Ask`: it runs
on our connections and on the caller's with the same statement. Whoever names messages by receipt is fenced:
the database refuses with HF001 when the message was read again since. Plain ids are not fenced.
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
from holdfast.engine.borrowed import Ask
from holdfast.engine.connection import Connection, Record
from holdfast.model import Json, Message, MessageMetrics, MessagePlace, MessagePolicy, MessageQueue

T = TypeVar("T")
_json = msgspec.json.Decoder()
_ids = msgspec.json.Decoder(list[int])

_SEND = """
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
# Fenced and plain ones in one statement: both happen or none.
_ACT = """
select to_jsonb(
  array(select * from {fenced}) || array(select * from {plain}))::text
from (select {{}}::jsonb as a) p
"""
_RECEIPTS = "array(select jsonb_array_elements_text(p.a -> 'receipts'))"
_PLAIN_IDS = "array(select e::bigint from jsonb_array_elements_text(p.a -> 'ids') e)"
_AFTER = "make_interval(secs => (p.a ->> 'vt_s')::double precision)"
_ARCHIVE = _ACT.format(
    fenced=f"holdfast.archive_messages(p.a ->> 'queue', {_RECEIPTS})",
    plain=f"pgmq.archive(p.a ->> 'queue', {_PLAIN_IDS})",
)
_DELETE = _ACT.format(
    fenced=f"holdfast.delete_messages(p.a ->> 'queue', {_RECEIPTS})",
    plain=f"pgmq.delete(p.a ->> 'queue', {_PLAIN_IDS})",
)
_SET_VT = _ACT.replace("select * from {plain}", "select v.msg_id from {plain} v").format(
    fenced=f"holdfast.set_message_vt(p.a ->> 'queue', {_RECEIPTS}, {_AFTER})",
    plain=f"pgmq.set_vt(p.a ->> 'queue', {_PLAIN_IDS}, holdfast.now() + {_AFTER})",
)

_PARTMAN = "Install the extension pg_partman, or make a plain queue: it stays fast without partitions."

_READ = "select * from holdfast.read_messages($1, $2, $3, $4)"
_POP = "select *, null as receipt from pgmq.pop($1, $2)"
_PEEK = """
select p.*, null as receipt, coalesce(e.error, p.headers #>> '{x-holdfast-dead,error}') as error, e.failed_at
from holdfast.peek_messages($1, $2, $3, $4) p
left join lateral holdfast.message_error($1, p.msg_id, p.enqueued_at) e on $3 = 'queue'
order by p.msg_id
"""


@contextmanager
def speaking_of(queue: str) -> Generator[None]:
    """The database's own words about a queue, in ours."""
    try:
        yield
    except asyncpg.PostgresError as problem:
        ours = _named(queue, problem.sqlstate or "", str(problem.args[0] if problem.args else problem))
        if ours is None:
            raise
        raise ours from problem


def _named(queue: str, code: str, message: str) -> errors.HoldfastError | None:
    if code in {"42P01", "HF002"}:
        return errors.NotFoundError(
            f"There is no message queue {queue!r}.",
            fix=f"Make it with `holdfast queue create {queue}` or client.queues.create.",
            field="queue",
        )
    if code in {"3F000", "42883"}:
        return errors.SchemaMissingError(
            "This database has no message queues of ours.", fix="Run `holdfast migrate`."
        )
    if code == "P0001":  # what the pgmq contract raises by itself
        fix = _PARTMAN if message.startswith("pg_partman is required") else None
        return errors.InvalidError(f"Queue {queue!r}: {message}.", fix=fix, field="queue")
    return None


def _ask(queue: str, statement: str, **argument: Json) -> Ask[list[int]]:
    body = msgspec.json.encode({"queue": queue, **argument})
    return Ask(statement, body, _ids.decode, lambda code, message: _named(queue, code, message))


async def ask(connection: Connection, question: Ask[T]) -> T:
    """Put a question on a connection of our own, in a transaction or not."""
    try:
        answer = await connection.fetchval(question.statement.format("$1"), question.argument.decode())
    except asyncpg.PostgresError as problem:
        ours = question.names(problem.sqlstate or "", str(problem.args[0] if problem.args else problem))
        if ours is None:
            raise
        raise ours from problem
    return question.read(answer)


def send_batch(
    queue: str,
    bodies: Sequence[bytes],
    *,
    headers: Sequence[bytes | None] | None = None,
    delay: timedelta | datetime | None = None,
) -> Ask[list[int]]:
    """`bodies` and `headers` are JSON texts. The ids come in the order of the bodies."""
    return _ask(
        queue,
        _SEND,
        bodies=[msgspec.Raw(body) for body in bodies],
        headers=None if headers is None else [None if h is None else msgspec.Raw(h) for h in headers],
        visible_at=delay if isinstance(delay, datetime) else None,
        delay_s=delay.total_seconds() if isinstance(delay, timedelta) else None,
    )


def archive(queue: str, receipts: Sequence[str], ids: Sequence[int]) -> Ask[list[int]]:
    return _ask(queue, _ARCHIVE, receipts=receipts, ids=ids)


def delete(queue: str, receipts: Sequence[str], ids: Sequence[int]) -> Ask[list[int]]:
    return _ask(queue, _DELETE, receipts=receipts, ids=ids)


def set_vt(queue: str, receipts: Sequence[str], ids: Sequence[int], vt: timedelta) -> Ask[list[int]]:
    return _ask(queue, _SET_VT, receipts=receipts, ids=ids, vt_s=vt.total_seconds())


def finishing(queue: str, receipt: str, how: Literal["archive", "delete"]) -> Ask[None]:
    """End a message in somebody's transaction; refused when it was read again."""
    question = archive(queue, [receipt], []) if how == "archive" else delete(queue, [receipt], [])
    return Ask(question.statement, question.argument, lambda _: None, question.names)


async def create(connection: Connection, queue: str, *, unlogged: bool = False) -> None:
    with speaking_of(queue):
        await connection.execute(f"select pgmq.create{'_unlogged' if unlogged else ''}($1)", queue)


async def create_partitioned(
    connection: Connection, queue: str, *, interval: str, retention: str, premake: int
) -> None:
    with speaking_of(queue):
        await connection.execute(
            "select pgmq.create_partitioned($1, $2, $3, $4)", queue, interval, retention, premake
        )


async def has_queue(connection: Connection, queue: str) -> bool:
    with speaking_of(queue):
        found: bool = await connection.fetchval("select holdfast.has_queue($1)", queue)
    return found


async def drop(connection: Connection, queue: str) -> bool:
    with speaking_of(queue):
        dropped: bool = await connection.fetchval("select pgmq.drop_queue($1)", queue)
    return dropped


async def purge(connection: Connection, queue: str) -> int:
    with speaking_of(queue):
        count: int = await connection.fetchval("select pgmq.purge_queue($1)", queue)
    return count


async def list_queues(connection: Connection) -> list[MessageQueue]:
    with speaking_of(""):
        rows = await connection.fetch("select * from pgmq.list_queues() order by queue_name")
    return [MessageQueue(name=r[0], partitioned=r[1], unlogged=r[2], created_at=r[3]) for r in rows]


async def read(
    connection: Connection, queue: str, *, vt: timedelta | None, qty: int, where: bytes | None = None
) -> list[Message[Json]]:
    """`where` is JSON text that the bodies must contain."""
    with speaking_of(queue):
        rows = await connection.fetch(_READ, queue, vt, qty, "{}" if where is None else where.decode())
    return [message_of(queue, row) for row in rows]


async def pop(connection: Connection, queue: str, qty: int) -> list[Message[Json]]:
    with speaking_of(queue):
        rows = await connection.fetch(_POP, queue, qty)
    return [message_of(queue, row) for row in rows]


async def peek(
    connection: Connection, queue: str, qty: int, place: MessagePlace, after: int | None
) -> list[Message[Json]]:
    with speaking_of(queue):
        rows = await connection.fetch(_PEEK, queue, qty, place, after)
    return [replace(message_of(queue, row), error=row["error"], failed_at=row["failed_at"]) for row in rows]


def message_of(queue: str, row: Record) -> Message[Json]:
    body, headers = row["message"], row["headers"]
    return Message(
        id=row["msg_id"],
        queue=queue,
        body=None if body is None else _json.decode(body),
        headers=None if headers is None else _json.decode(headers),
        reads=row["read_ct"],
        sent_at=row["enqueued_at"],
        read_at=row["last_read_at"],
        visible_at=row["vt"],
        receipt=row["receipt"],
    )


async def requeue(
    connection: Connection, queue: str, place: MessagePlace, ids: Sequence[int] | None, limit: int
) -> dict[int, int]:
    """Back into the queue as new messages: old id to new id."""
    with speaking_of(queue):
        rows = await connection.fetch(
            "select * from holdfast.requeue_messages($1, $2, $3, $4)",
            queue, place, None if ids is None else list(ids), limit,
        )  # fmt: skip
    return {row["old_id"]: row["new_id"] for row in rows}


async def enable_wakeups(connection: Connection, queue: str) -> bool:
    """Let inserts wake readers. False when the queue is somebody else's, who would have to do it."""
    try:
        with speaking_of(queue):
            await connection.execute("select holdfast.enable_wakeups($1)", queue)
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True


async def metrics(connection: Connection, queue: str | None = None) -> list[MessageMetrics]:
    """Of one queue, or of all."""
    with speaking_of(queue or ""):
        rows = await connection.fetch("select * from holdfast.message_metrics($1)", queue)
    return [MessageMetrics(queue=row["queue_name"], **dict(list(row.items())[1:])) for row in rows]


async def policy(connection: Connection, queue: str) -> MessagePolicy:
    with speaking_of(queue):
        await connection.execute("select holdfast.check_queue($1)", queue)
        row = await connection.fetchrow("select * from holdfast.message_policy($1)", queue)
    assert row is not None  # noqa: S101  (the function answers with one row)
    return _policy(row)


async def put_policy(connection: Connection, queue: str, wanted: MessagePolicy) -> MessagePolicy:
    with speaking_of(queue):
        row = await connection.fetchrow(
            "select * from holdfast.put_message_policy($1, $2, $3, $4, $5, $6, $7)",
            queue, wanted.max_reads, wanted.dead_letters, wanted.backoff, wanted.backoff_cap,
            wanted.archive_retention, wanted.vt,
        )  # fmt: skip
    assert row is not None  # noqa: S101  (the function answers with one row)
    return _policy(row)


def _policy(row: Record) -> MessagePolicy:
    return MessagePolicy(
        vt=row["vt"],
        max_reads=row["max_reads"],
        backoff=row["backoff"],
        backoff_cap=row["backoff_cap"],
        dead_letters=row["dead_letter_queue"],
        archive_retention=row["archive_retention"],
    )


async def tick(connection: Connection, limit: int = 1000) -> dict[str, Json]:
    """One step of upkeep: old archives go, messages that were read too often are buried."""
    text = await connection.fetchval("select holdfast.tick_messages($1)", limit)
    answer: dict[str, Json] = _json.decode(text)
    return answer
