"""Read, renew, finish, retry and dead-letter messages for consumers.

Every function works by receipt and skips messages that another reader has read since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import asyncpg

from holdfast.engine.connection import Connection
from holdfast.engine.messages.queues import message_from_row, translate_queue_errors
from holdfast.model import Json, Message

# A consumer reads without the policy's max_reads and moves exhausted messages to the dead letters itself,
# because it has to call the `on_dead` handler for them.
_READ_MESSAGES = """
select f.*, holdfast.build_message_receipt(f.msg_id, f.read_ct, f.last_read_at) as receipt,
       (holdfast.get_message_policy($1)).max_reads, null::double precision as due_s
from unnest(holdfast.read_messages_ignoring_policy($1, $2, $3, '{}')) f order by f.msg_id
"""
# Registering the sleeping reader comes first, as messages/wakeups.sql requires. The case makes the read
# depend on it.
_REGISTER_AND_READ_MESSAGES = """
select f.*, holdfast.build_message_receipt(f.msg_id, f.read_ct, f.last_read_at) as receipt,
       (holdfast.get_message_policy($1)).max_reads,
       extract(epoch from w.due - holdfast.now())::double precision as due_s
from (select holdfast.register_sleeping_reader($1, $4) as due) w
left join lateral unnest(holdfast.read_messages_ignoring_policy(
  $1, $2, case when w.due is null then $3::integer else $3::integer end, '{}')) f on true
order by f.msg_id
"""
# The lock timeout applies to this statement only: a row that its reader has locked must not delay all others.
_EXTEND_VISIBILITY = """
select v as id from (select set_config('lock_timeout', $4, true) as s) l,
lateral holdfast.set_message_vt($1, $2, $3, l.s is null) v
"""
_FINISH_STATEMENTS = {
    "archive": "select * from holdfast.archive_messages($1, $2, false) as id",
    "delete": "select * from holdfast.delete_messages($1, $2, false) as id",
}


@dataclass(frozen=True)
class MessageBatch:
    """Messages that a consumer read, with the queue's maximum number of reads.

    `max_reads` comes from the policy of the queue. `due_s` is the time until the next message becomes
    visible, if the reader registered as sleeping.
    """

    messages: list[Message[Json]]
    max_reads: int | None
    due_s: float | None


async def read_message_batch(
    connection: Connection, queue: str, *, vt: timedelta, qty: int, sleep: timedelta | None = None
) -> MessageBatch:
    """Read up to `qty` messages. With `sleep`, also register the reader for wakeups for that long."""
    arguments: list[Any] = [queue, vt.total_seconds(), qty]
    with translate_queue_errors(queue):
        if sleep is None:
            rows = await connection.fetch(_READ_MESSAGES, *arguments)
        else:
            rows = await connection.fetch(_REGISTER_AND_READ_MESSAGES, *arguments, sleep)
    return MessageBatch(
        [message_from_row(queue, row) for row in rows if row["msg_id"] is not None],
        rows[0]["max_reads"] if rows else None,
        rows[0]["due_s"] if rows else None,
    )


async def extend_visibility(
    connection: Connection, queue: str, receipts: Sequence[str], vt: timedelta, *, lock_timeout: timedelta
) -> set[int] | None:
    """Extend the visibility timeout of messages to `vt` from now. Return the ids with a valid receipt.

    Return None and change nothing when another transaction has locked one of them for longer than
    `lock_timeout`.
    """
    timeout = f"{max(1, round(lock_timeout.total_seconds() * 1000))}ms"
    with translate_queue_errors(queue):
        try:
            rows = await connection.fetch(_EXTEND_VISIBILITY, queue, list(receipts), vt, timeout)
        except asyncpg.LockNotAvailableError:
            return None
    return {row["id"] for row in rows}


async def finish_messages(
    connection: Connection, queue: str, how: Literal["archive", "delete"], receipts: Sequence[str]
) -> set[int]:
    """Archive or delete messages. Return the ids of the messages whose receipt was valid."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(_FINISH_STATEMENTS[how], queue, list(receipts))
    return {row["id"] for row in rows}


async def hide_messages(
    connection: Connection, queue: str, receipts: Sequence[str], vt: timedelta
) -> set[int]:
    """Make messages visible again after `vt`. Return the ids of the messages whose receipt was valid."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(
            "select * from holdfast.set_message_vt($1, $2, $3, false) as id", queue, list(receipts), vt
        )
    return {row["id"] for row in rows}


async def fail_messages(
    connection: Connection, queue: str, receipts: Sequence[str], error: str
) -> dict[int, Literal["retry", "dead"]]:
    """Record a failure of each message. Return per id whether it is retried or was dead-lettered."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(
            "select * from holdfast.fail_messages($1, $2, $3, false)", queue, list(receipts), error
        )
    return {row["msg_id"]: row["outcome"] for row in rows}


async def retry_messages(connection: Connection, queue: str, receipts: Sequence[str], error: str) -> set[int]:
    """Retry messages after the backoff of the queue's policy, without a limit of reads. Return their ids."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(
            "select * from holdfast.retry_messages($1, $2, $3)", queue, list(receipts), error
        )
    return {row["msg_id"] for row in rows}


async def move_to_dead_letters(
    connection: Connection, queue: str, receipts: Sequence[str], error: str
) -> set[int]:
    """Move messages with a valid receipt to the dead letters and store the error. Return their ids."""
    with translate_queue_errors(queue):
        rows = await connection.fetch(
            "select * from holdfast.move_to_dead_letters($1, $2, $3) as id", queue, list(receipts), error
        )
    return {row["id"] for row in rows}
