"""Messages for consumers: taken without the policy's limit, kept invisible, finished, given back, buried.

Everything goes by receipt and leaves alone what is no longer ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import asyncpg

from holdfast.engine.connection import Connection
from holdfast.engine.messages.queues import message_of, speaking_of
from holdfast.model import Json, Message

# A consumer decides itself who is buried, because it has to tell; so it reads without the policy's limit.
# Saying that it is going to sleep comes first, as queues_wake.sql asks; the case makes the read depend on it.
_TAKE = """
select f.*, holdfast.message_receipt(f.msg_id, f.read_ct, f.last_read_at) as receipt,
       (holdfast.message_policy($1)).max_reads, null::double precision as due_s
from unnest(holdfast.take_messages($1, $2, $3, '{}')) f order by f.msg_id
"""
_TAKE_OR_SLEEP = """
select f.*, holdfast.message_receipt(f.msg_id, f.read_ct, f.last_read_at) as receipt,
       (holdfast.message_policy($1)).max_reads,
       extract(epoch from w.due - holdfast.now())::double precision as due_s
from (select holdfast.wait_messages($1, $4) as due) w
left join lateral unnest(holdfast.take_messages(
  $1, $2, case when w.due is null then $3::integer else $3::integer end, '{}')) f on true
order by f.msg_id
"""
# The lock limit is this statement's own: a row that its reader has locked must not hold up all others.
_EXTEND = """
select v as id from (select set_config('lock_timeout', $4, true) as s) l,
lateral holdfast.set_message_vt($1, $2, $3, l.s is null) v
"""


@dataclass(frozen=True)
class Taken:
    """`max_reads` is the policy's; `due_s`: when something comes into sight, if it was asked for."""

    messages: list[Message[Json]]
    max_reads: int | None
    due_s: float | None


async def take(
    connection: Connection, queue: str, *, vt: timedelta, qty: int, sleep: timedelta | None = None
) -> Taken:
    """Messages for a consumer. With `sleep` it has said that it will not look again for so long."""
    arguments: list[Any] = [queue, vt.total_seconds(), qty]
    with speaking_of(queue):
        if sleep is None:
            rows = await connection.fetch(_TAKE, *arguments)
        else:
            rows = await connection.fetch(_TAKE_OR_SLEEP, *arguments, sleep)
    return Taken(
        [message_of(queue, row) for row in rows if row["msg_id"] is not None],
        rows[0]["max_reads"] if rows else None,
        rows[0]["due_s"] if rows else None,
    )


async def extend(
    connection: Connection, queue: str, receipts: Sequence[str], vt: timedelta, *, patience: timedelta
) -> set[int] | None:
    """Keep messages invisible; the ids of those that are still ours.

    None, and nothing done, when somebody had one of them locked for longer than `patience`.
    """
    limit = f"{max(1, round(patience.total_seconds() * 1000))}ms"
    try:
        with speaking_of(queue):
            rows = await connection.fetch(_EXTEND, queue, list(receipts), vt, limit)
    except asyncpg.LockNotAvailableError:
        return None
    return {row["id"] for row in rows}


_FINISH = {
    "archive": "select * from holdfast.archive_messages($1, $2, false) as id",
    "delete": "select * from holdfast.delete_messages($1, $2, false) as id",
}


async def finish(
    connection: Connection, queue: str, how: Literal["archive", "delete"], receipts: Sequence[str]
) -> set[int]:
    """Archive or delete what is still ours, and say which."""
    with speaking_of(queue):
        rows = await connection.fetch(_FINISH[how], queue, list(receipts))
    return {row["id"] for row in rows}


async def rest(connection: Connection, queue: str, receipts: Sequence[str], vt: timedelta) -> set[int]:
    """Make what is still ours visible again after `vt`."""
    with speaking_of(queue):
        rows = await connection.fetch(
            "select * from holdfast.set_message_vt($1, $2, $3, false) as id", queue, list(receipts), vt
        )
    return {row["id"] for row in rows}


async def fail(
    connection: Connection, queue: str, receipts: Sequence[str], error: str
) -> dict[int, Literal["retry", "dead"]]:
    """A failed attempt each: they rest as the policy says, or are dead. Leaves out what is no longer ours."""
    with speaking_of(queue):
        rows = await connection.fetch(
            "select * from holdfast.fail_messages($1, $2, $3, false)", queue, list(receipts), error
        )
    return {row["msg_id"]: row["outcome"] for row in rows}


async def retry(connection: Connection, queue: str, receipts: Sequence[str], error: str) -> set[int]:
    """Let what is still ours rest as after a failure, however often it was read."""
    with speaking_of(queue):
        rows = await connection.fetch(
            "select * from holdfast.retry_messages($1, $2, $3)", queue, list(receipts), error
        )
    return {row["msg_id"] for row in rows}


async def bury(connection: Connection, queue: str, receipts: Sequence[str], error: str) -> set[int]:
    """Put what is still ours to the dead letters, with the reason."""
    with speaking_of(queue):
        rows = await connection.fetch(
            "select * from holdfast.bury_messages($1, $2, $3) as id", queue, list(receipts), error
        )
    return {row["id"] for row in rows}
