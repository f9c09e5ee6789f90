"""Message queues for an application: `client.queues`.

Messages that came from `read` carry a receipt: archive, delete and set_vt with the message itself raise
LeaseLostError when somebody else has read it since. With a plain id nothing is compared, as in pgmq.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

import msgspec

from holdfast.client.messages import arguments
from holdfast.client.messages.arguments import Delay, Target
from holdfast.definitions.payloads import from_json
from holdfast.engine import borrowed
from holdfast.engine.borrowed import Ask
from holdfast.engine.connection import Connection, Database
from holdfast.engine.messages import consumers as consuming
from holdfast.engine.messages import queues
from holdfast.errors import InvalidError
from holdfast.model import Json, Message, MessageMetrics, MessagePlace, MessagePolicy, MessageQueue

B = TypeVar("B")
T = TypeVar("T")
LEAST_PAUSE, MOST_PAUSE = 0.02, 0.5


class Opening(Protocol):
    """The part of the client that its queues need."""

    async def open(self) -> Database: ...


class ReadOptions(TypedDict, total=False):
    """qty: how many at most; vt: how long they stay invisible to others (else the queue's policy);
    where: only messages whose body contains this; wait: how long to wait for the first one."""

    qty: int
    vt: timedelta | None
    where: Json
    wait: timedelta | None


class PolicyChanges(TypedDict, total=False):
    vt: timedelta
    max_reads: int | None
    backoff: timedelta
    backoff_cap: timedelta
    dead_letters: str | None
    archive_retention: timedelta | None


class Held:
    """A message that was read by the client; nothing extends its visibility but the caller."""

    stopped: str | None = None

    def __init__(self, queue: str, receipt: str) -> None:
        self._queue = queue
        self._receipt = receipt

    def done(self, on: object) -> Awaitable[None]:
        return borrowed.ask_now(on, queues.finishing(self._queue, self._receipt, "archive"))


class Queues:
    def __init__(self, client: Opening) -> None:
        self._client = client

    async def create(self, queue: str, *, unlogged: bool = False) -> None:
        """Make a queue, if it is not there. Unlogged ones are faster, and empty after a crash."""
        arguments.check_queue_name(queue)
        async with self._connection() as connection:
            await queues.create(connection, queue, unlogged=unlogged)

    async def create_partitioned(
        self,
        queue: str,
        *,
        interval: int | timedelta = 10_000,
        retention: int | timedelta = 100_000,
        premake: int = 4,
    ) -> None:
        """A queue in partitions of so many ids or so much time. Needs the extension pg_partman."""
        arguments.check_queue_name(queue)
        arguments.check_count(premake, "premake", most=1000)
        async with self._connection() as connection:
            await queues.create_partitioned(
                connection,
                queue,
                interval=arguments.extent(interval, "interval"),
                retention=arguments.extent(retention, "retention"),
                premake=premake,
            )

    async def drop(self, queue: str) -> bool:
        """Remove a queue with all messages and its archive. False when there was none."""
        arguments.check_queue_name(queue)
        async with self._connection() as connection:
            return await queues.drop(connection, queue)

    async def purge(self, queue: str) -> int:
        """Delete every message of a queue, read or not; the archive stays. How many there were."""
        arguments.check_queue_name(queue)
        async with self._connection() as connection:
            return await queues.purge(connection, queue)

    async def list(self) -> list[MessageQueue]:
        async with self._connection() as connection:
            return await queues.list_queues(connection)

    async def send(
        self, queue: str, body: object, *, headers: Json = None, delay: Delay = None, on: object = None
    ) -> int:
        """Send a message: any JSON, or what turns into JSON. With `on=` it exists if you commit."""
        [sent] = await self.ask(arguments.sending(queue, [body], [headers], delay), on)
        return sent

    async def send_batch(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Sequence[Json] | None = None,
        delay: Delay = None,
        on: object = None,
    ) -> builtins.list[int]:
        """All of them or none, in one round trip; the ids in the given order."""
        return await self.ask(arguments.sending(queue, [*bodies], headers, delay), on)

    @overload
    async def read(
        self, queue: str, *, type: builtins.type[B], **options: Unpack[ReadOptions]
    ) -> builtins.list[Message[B]]: ...
    @overload
    async def read(
        self, queue: str, *, type: None = None, **options: Unpack[ReadOptions]
    ) -> builtins.list[Message[Any]]: ...
    async def read(
        self,
        queue: str,
        *,
        type: Any = None,  # noqa: A002
        **options: Unpack[ReadOptions],
    ) -> builtins.list[Message[Any]]:
        """Take messages that are visible, lowest id first, and hide them from others for a while."""
        query = arguments.Reading.of(queue, **options)
        deadline = time.monotonic() + query.wait
        pause = LEAST_PAUSE
        while True:
            async with self._connection() as connection:
                found = await queues.read(connection, queue, vt=query.vt, qty=query.qty, where=query.where)
                if found or time.monotonic() >= deadline:
                    return await self._fitting(connection, [_held(m) for m in found], type)
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, MOST_PAUSE)

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
        """Read and delete at once: what you do not finish is lost. When one does not fit, all stay."""
        arguments.check_queue_name(queue)
        arguments.check_count(qty, "qty")
        async with (await self._client.open()).transaction() as connection:
            return [fit(m, type) for m in await queues.pop(connection, queue, qty)]

    async def archive(self, queue: str, target: Target, *, on: object = None) -> builtins.list[int]:
        """Move messages to the archive. The ids of those that were there."""
        return await self.ask(queues.archive(*arguments.targets(queue, target)), on)

    async def delete(self, queue: str, target: Target, *, on: object = None) -> builtins.list[int]:
        """Delete messages. The ids of those that were there."""
        return await self.ask(queues.delete(*arguments.targets(queue, target)), on)

    async def set_vt(
        self, queue: str, target: Target, vt: timedelta, *, on: object = None
    ) -> builtins.list[int]:
        """Hide messages for `vt` from now; zero gives them back. The receipts stay good."""
        arguments.check_span(vt, "vt")
        return await self.ask(queues.set_vt(*arguments.targets(queue, target), vt), on)

    async def metrics(self, queue: str) -> MessageMetrics:
        arguments.check_queue_name(queue)
        async with self._connection() as connection:
            [found] = await queues.metrics(connection, queue)
            return found

    async def metrics_all(self) -> builtins.list[MessageMetrics]:
        async with self._connection() as connection:
            return await queues.metrics(connection)

    async def peek(
        self, queue: str, *, qty: int = 10, place: MessagePlace = "queue", after: int | None = None
    ) -> builtins.list[Message[Any]]:
        """Look without taking: in the queue, its archive or its dead letters, from an id on."""
        arguments.check_queue_name(queue)
        arguments.check_count(qty, "qty")
        arguments.check_place(place)
        async with self._connection() as connection:
            return await queues.peek(connection, queue, qty, place, after)

    async def requeue(
        self,
        queue: str,
        ids: Iterable[int] | None = None,
        *,
        place: MessagePlace = "dead",
        limit: int = 1000,
    ) -> dict[int, int]:
        """Put messages back from the dead letters or the archive, as new ones: old id to new id.

        Without ids, the oldest `limit`.
        """
        arguments.check_queue_name(queue)
        arguments.check_count(limit, "limit")
        if place not in {"dead", "archive"}:
            raise InvalidError(f"Messages come back from 'dead' or 'archive', not {place!r}.", field="place")
        chosen = None if ids is None else [arguments.message_id(each) for each in ids]
        async with self._connection() as connection:
            return await queues.requeue(connection, queue, place, chosen, limit)

    async def policy(self, queue: str) -> MessagePolicy:
        arguments.check_queue_name(queue)
        async with self._connection() as connection:
            return await queues.policy(connection, queue)

    async def put_policy(self, queue: str, **changes: Unpack[PolicyChanges]) -> MessagePolicy:
        """Change what is given of the queue's policy. A dead-letter queue that is missing is made."""
        arguments.check_queue_name(queue)
        arguments.check_policy(queue, changes)
        async with (await self._client.open()).transaction() as connection:
            before = await queues.policy(connection, queue)
            return await queues.put_policy(connection, queue, msgspec.structs.replace(before, **changes))

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Connection]:
        async with (await self._client.open()).connection() as connection:
            yield connection

    async def ask(self, question: Ask[T], on: object = None) -> T:
        """Put a question on the caller's connection, or on one of ours."""
        if on is not None:
            return await borrowed.ask(on, question)
        async with self._connection() as connection:
            return await queues.ask(connection, question)

    async def _fitting(
        self, connection: Connection, found: builtins.list[Message[Any]], kind: Any
    ) -> builtins.list[Message[Any]]:
        """All of them typed. When one does not fit the others go back at once, and it rests for its vt."""
        try:
            return [fit(each, kind) for each in found]
        except MisfitError as misfit:
            back = [m.receipt for m in found if m.receipt and m.id != misfit.message_id]
            if back:
                await consuming.rest(connection, found[0].queue, back, timedelta(0))
            raise


class MisfitError(InvalidError):
    """The body of a message is not what was asked for."""

    def __init__(self, message: Message[Any], problem: InvalidError) -> None:
        super().__init__(
            f"Message {message.id} of queue {message.queue}: {problem.message}",
            fix="Read it with another type, or delete it.",
            field=problem.field,
        )
        self.message_id = message.id


def fit(message: Message[Any], kind: Any) -> Message[Any]:
    """The message with its body as `kind`."""
    if kind is None or kind is Any:
        return message
    try:
        return replace(message, body=from_json(message.body, kind, what="body"))
    except InvalidError as problem:
        raise MisfitError(message, problem) from problem


def _held(message: Message[Any]) -> Message[Any]:
    assert message.receipt is not None  # noqa: S101  (a read always gives one)
    return replace(message, hold=Held(message.queue, message.receipt))
