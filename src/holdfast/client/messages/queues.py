"""`client.queues`: message queues for applications."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

import msgspec

from holdfast.client.connections import ClientConnections
from holdfast.client.messages import arguments
from holdfast.client.messages.arguments import MessageDelay, MessageTarget
from holdfast.definitions.payloads import convert_payload
from holdfast.definitions.validation import check_option_names
from holdfast.engine import caller_connection
from holdfast.engine.caller_connection import JsonStatement
from holdfast.engine.connection import Connection
from holdfast.engine.messages import consumers, queues
from holdfast.errors import InvalidError
from holdfast.model import Json, Message, MessageMetrics, MessagePlace, MessagePolicy, MessageQueue

B = TypeVar("B")
T = TypeVar("T")
MIN_POLL_PAUSE_S, MAX_POLL_PAUSE_S = 0.02, 0.5


class MessageReadOptions(TypedDict, total=False):
    """The keyword arguments of `client.queues.read`.

    qty: the maximum number of messages. The default is 1.
    vt: how long the messages stay invisible to other readers. The default is the queue's policy.
    where: a JSON object that the body must contain.
    wait: how long to wait for the first message. The default is not to wait.

    >>> from datetime import timedelta
    >>> from holdfast import MessageReadOptions
    >>> ten: MessageReadOptions = {"qty": 10, "vt": timedelta(minutes=1)}
    """

    qty: int
    vt: timedelta | float | None
    where: Json
    wait: timedelta | float | None


class MessagePolicyChanges(TypedDict, total=False):
    """The keyword arguments of `client.queues.put_policy`: the fields of `MessagePolicy` to change.

    >>> from holdfast import MessagePolicyChanges
    >>> changes: MessagePolicyChanges = {"max_reads": 5, "dead_letters": "letters_dead"}
    """

    vt: timedelta | float
    max_reads: int | None
    backoff: timedelta | float
    backoff_cap: timedelta | float
    dead_letters: str | None
    archive_retention: timedelta | float | None


class ClientMessageLease:
    """The lease of a message that a client has read. The client does not renew the lease."""

    stop_reason: str | None = None

    def __init__(self, queue: str, receipt: str) -> None:
        self._queue = queue
        self._receipt = receipt

    def done(self, on: object) -> Awaitable[None]:
        return caller_connection.run_statement_or_defer(
            on, queues.build_finish_statement(self._queue, self._receipt, "archive")
        )


class Queues:
    """`client.queues`: create pgmq queues, send messages and read messages.

    A message that `read` returned carries a receipt: `archive`, `delete` and `set_vt` with the message raise
    LeaseLostError if it was read again since. With a plain id nothing is compared, as in pgmq.

    With shards, the name of a queue decides which of them it is on.
    """

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections

    async def create(self, queue: str, *, unlogged: bool = False) -> None:
        """Create a queue if it does not exist. An unlogged queue is faster, but empty after a crash."""
        arguments.check_queue_name(queue)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            await queues.create_message_queue(connection, queue, unlogged=unlogged)

    async def create_partitioned(
        self,
        queue: str,
        *,
        interval: int | timedelta = 10_000,
        retention: int | timedelta = 100_000,
        premake: int = 4,
    ) -> None:
        """Create a partitioned queue, which needs the PostgreSQL extension pg_partman.

        `interval` is the size of a partition and `retention` how much is kept: a number of ids, or a time.
        """
        arguments.check_queue_name(queue)
        arguments.check_count(premake, "premake", max_count=1000)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            await queues.create_partitioned_message_queue(
                connection,
                queue,
                interval=arguments.format_partition_size(interval, "interval"),
                retention=arguments.format_partition_size(retention, "retention"),
                premake=premake,
            )

    async def drop(self, queue: str) -> bool:
        """Delete a queue, its messages and its archive. Return False if the queue does not exist."""
        arguments.check_queue_name(queue)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            return await queues.drop_message_queue(connection, queue)

    async def purge(self, queue: str) -> int:
        """Delete all messages of a queue, but not its archive. Return the number of deleted messages."""
        arguments.check_queue_name(queue)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            return await queues.purge_message_queue(connection, queue)

    async def list(self) -> builtins.list[MessageQueue]:
        """Return all message queues."""
        lists = await self._connections.run_on_all(queues.list_message_queues)
        return [queue for each in lists for queue in each]

    async def send(
        self, queue: str, body: object, *, headers: Json = None, delay: MessageDelay = None, on: object = None
    ) -> int:
        """Send a message and return its id. The body is JSON, or a value that can be stored as JSON.

        With `on=connection` the message is part of your open transaction: it exists if you commit.
        """
        [message_id] = await self._execute_statement(
            queue, arguments.build_send_statement(queue, [body], [headers], delay), on
        )
        return message_id

    async def send_batch(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Sequence[Json] | None = None,
        delay: MessageDelay = None,
        on: object = None,
    ) -> builtins.list[int]:
        """Send messages in one transaction and return their ids in the same order."""
        return await self._execute_statement(
            queue, arguments.build_send_statement(queue, [*bodies], headers, delay), on
        )

    @overload
    async def read(
        self, queue: str, *, type: builtins.type[B], **options: Unpack[MessageReadOptions]
    ) -> builtins.list[Message[B]]: ...
    @overload
    async def read(
        self, queue: str, *, type: None = None, **options: Unpack[MessageReadOptions]
    ) -> builtins.list[Message[Any]]: ...
    async def read(
        self,
        queue: str,
        *,
        type: Any = None,  # noqa: A002
        **options: Unpack[MessageReadOptions],
    ) -> builtins.list[Message[Any]]:
        """Read visible messages, lowest id first, and hide them from other readers for `vt`.

        With `type` the bodies are converted to that type.
        """
        check_option_names(options, MessageReadOptions.__annotations__, "queues.read")
        request = arguments.MessageReadRequest.from_options(queue, **options)
        deadline = time.monotonic() + request.wait_s
        pause = MIN_POLL_PAUSE_S
        while True:
            async with (await self._connections.for_message_queue(queue)).connection() as connection:
                messages = await queues.read_messages(
                    connection, queue, vt=request.vt, qty=request.qty, where=request.where
                )
                if messages or time.monotonic() >= deadline:
                    return await self._convert_bodies(
                        connection, [_attach_client_lease(m) for m in messages], type
                    )
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, MAX_POLL_PAUSE_S)

    @overload
    async def pop(self, queue: str, *, qty: int = 1, type: builtins.type[B]) -> builtins.list[Message[B]]: ...
    @overload
    async def pop(self, queue: str, *, qty: int = 1, type: None = None) -> builtins.list[Message[Any]]: ...
    async def pop(
        self,
        queue: str,
        *,
        qty: int = 1,
        type: Any = None,  # noqa: A002
    ) -> builtins.list[Message[Any]]:
        """Read messages and delete them at once. A message is lost if your code fails afterwards.

        If one body cannot be converted to `type`, no message is deleted.
        """
        arguments.check_queue_name(queue)
        arguments.check_count(qty, "qty")
        async with (await self._connections.for_message_queue(queue)).transaction() as connection:
            return [convert_body_to_type(m, type) for m in await queues.pop_messages(connection, queue, qty)]

    async def archive(self, queue: str, target: MessageTarget, *, on: object = None) -> builtins.list[int]:
        """Move messages to the archive and return the ids of the archived messages."""
        return await self._execute_statement(
            queue, queues.build_archive_statement(*arguments.split_message_targets(queue, target)), on
        )

    async def delete(self, queue: str, target: MessageTarget, *, on: object = None) -> builtins.list[int]:
        """Delete messages and return the ids of the deleted messages."""
        return await self._execute_statement(
            queue, queues.build_delete_statement(*arguments.split_message_targets(queue, target)), on
        )

    async def set_vt(
        self, queue: str, target: MessageTarget, vt: timedelta | float, *, on: object = None
    ) -> builtins.list[int]:
        """Hide messages for `vt`, counted from now. Zero makes the messages visible at once.

        Receipts stay valid.
        """
        invisible = arguments.parse_message_duration(vt, "vt")
        targets = arguments.split_message_targets(queue, target)
        return await self._execute_statement(queue, queues.build_set_vt_statement(*targets, invisible), on)

    async def metrics(self, queue: str) -> MessageMetrics:
        """Return the metrics of one queue."""
        arguments.check_queue_name(queue)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            [metrics] = await queues.list_message_metrics(connection, queue)
            return metrics

    async def metrics_all(self) -> builtins.list[MessageMetrics]:
        """Return the metrics of all queues."""
        lists = await self._connections.run_on_all(queues.list_message_metrics)
        return [metrics for each in lists for metrics in each]

    async def peek(
        self, queue: str, *, qty: int = 10, place: MessagePlace = "queue", after: int | None = None
    ) -> builtins.list[Message[Any]]:
        """Return messages of a queue, its archive or its dead letters, without hiding the messages."""
        arguments.check_queue_name(queue)
        arguments.check_count(qty, "qty")
        arguments.check_message_place(place)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            return await queues.peek_messages(connection, queue, qty, place, after)

    async def requeue(
        self,
        queue: str,
        ids: Iterable[int] | None = None,
        *,
        place: MessagePlace = "dead",
        limit: int = 1000,
    ) -> dict[int, int]:
        """Send dead letters or archived messages again. Return the new message id by old message id.

        Without ids, send the oldest `limit` messages.
        """
        arguments.check_queue_name(queue)
        arguments.check_count(limit, "limit")
        if place not in {"dead", "archive"}:
            raise InvalidError(f"place must be 'dead' or 'archive', got {place!r}.", field="place")
        chosen = None if ids is None else [arguments.check_message_id(each) for each in ids]
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            return await queues.requeue_messages(connection, queue, place, chosen, limit)

    async def policy(self, queue: str) -> MessagePolicy:
        """Return the policy of a queue."""
        arguments.check_queue_name(queue)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            return await queues.get_message_policy(connection, queue)

    async def put_policy(self, queue: str, **changes: Unpack[MessagePolicyChanges]) -> MessagePolicy:
        """Change fields of a queue's policy. A missing dead-letter queue is created."""
        check_option_names(changes, MessagePolicyChanges.__annotations__, "queues.put_policy")
        arguments.check_queue_name(queue)
        parsed = arguments.parse_policy_changes(queue, changes)
        async with (await self._connections.for_message_queue(queue)).transaction() as connection:
            current = await queues.get_message_policy(connection, queue)
            return await queues.put_message_policy(
                connection, queue, msgspec.structs.replace(current, **parsed)
            )

    async def _execute_statement(self, queue: str, statement: JsonStatement[T], on: object = None) -> T:
        """Run a statement on the caller's connection, or on a connection of the pool."""
        if on is not None:
            return await caller_connection.run_statement_async(on, statement)
        async with (await self._connections.for_message_queue(queue)).connection() as connection:
            return await queues.run_json_statement(connection, statement)

    async def _convert_bodies(
        self, connection: Connection, messages: builtins.list[Message[Any]], body_type: Any
    ) -> builtins.list[Message[Any]]:
        """Convert the bodies of all messages. If one conversion fails, make the other messages visible."""
        try:
            return [convert_body_to_type(message, body_type) for message in messages]
        except MessageBodyError as error:
            receipts = [m.receipt for m in messages if m.receipt and m.id != error.message_id]
            if receipts:
                await consumers.hide_messages(connection, messages[0].queue, receipts, timedelta(0))
            raise


class MessageBodyError(InvalidError):
    """The body of a message cannot be converted to the requested type."""

    def __init__(self, message: Message[Any], error: InvalidError) -> None:
        super().__init__(
            f"Message {message.id} of queue {message.queue}: {error.message}",
            fix="Read it with another type, or delete it.",
            field=error.field,
        )
        self.message_id = message.id


def convert_body_to_type(message: Message[Any], body_type: Any) -> Message[Any]:
    """Return the message with its body converted to `body_type`."""
    if body_type is None or body_type is Any:
        return message
    try:
        return replace(message, body=convert_payload(message.body, body_type, what="body"))
    except InvalidError as error:
        raise MessageBodyError(message, error) from error


def _attach_client_lease(message: Message[Any]) -> Message[Any]:
    assert message.receipt is not None  # noqa: S101  (a read always returns a receipt)
    return replace(message, lease=ClientMessageLease(message.queue, message.receipt))
