"""`client.blocking.queues`: the same calls as `client.queues` for code without an event loop.

Everything is done there. Only what runs on the caller's synchronous connection runs here, in the caller's
own thread.
"""

from __future__ import annotations

import builtins
from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar, Unpack, overload

from holdfast.client.messages import arguments
from holdfast.client.messages.arguments import Delay, Target
from holdfast.client.messages.queues import PolicyChanges, Queues, ReadOptions
from holdfast.engine import borrowed
from holdfast.engine.borrowed import Ask
from holdfast.engine.messages import queues
from holdfast.model import Json, Message, MessageMetrics, MessagePlace, MessagePolicy, MessageQueue

B = TypeVar("B")
T = TypeVar("T")


class Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class BlockingQueues:
    def __init__(self, inner: Queues, run: Run) -> None:
        self._inner = inner
        self._run = run

    def create(self, queue: str, *, unlogged: bool = False) -> None:
        self._run(self._inner.create(queue, unlogged=unlogged))

    def create_partitioned(
        self,
        queue: str,
        *,
        interval: int | timedelta = 10_000,
        retention: int | timedelta = 100_000,
        premake: int = 4,
    ) -> None:
        self._run(
            self._inner.create_partitioned(queue, interval=interval, retention=retention, premake=premake)
        )

    def drop(self, queue: str) -> bool:
        return self._run(self._inner.drop(queue))

    def purge(self, queue: str) -> int:
        return self._run(self._inner.purge(queue))

    def list(self) -> builtins.list[MessageQueue]:
        return self._run(self._inner.list())

    def send(
        self, queue: str, body: object, *, headers: Json = None, delay: Delay = None, on: object = None
    ) -> int:
        [sent] = self._ask(arguments.sending(queue, [body], [headers], delay), on)
        return sent

    def send_batch(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Sequence[Json] | None = None,
        delay: Delay = None,
        on: object = None,
    ) -> builtins.list[int]:
        return self._ask(arguments.sending(queue, [*bodies], headers, delay), on)

    @overload
    def read(
        self, queue: str, *, type: builtins.type[B], **options: Unpack[ReadOptions]
    ) -> builtins.list[Message[B]]: ...
    @overload
    def read(
        self, queue: str, *, type: None = None, **options: Unpack[ReadOptions]
    ) -> builtins.list[Message[Any]]: ...
    def read(
        self,
        queue: str,
        *,
        type: Any = None,  # noqa: A002
        **options: Unpack[ReadOptions],
    ) -> builtins.list[Message[Any]]:
        return self._run(self._inner.read(queue, type=type, **options))

    @overload
    def pop(self, queue: str, *, qty: int = 1, type: builtins.type[B]) -> builtins.list[Message[B]]: ...
    @overload
    def pop(self, queue: str, *, qty: int = 1, type: None = None) -> builtins.list[Message[Any]]: ...
    def pop(
        self,
        queue: str,
        *,
        qty: int = 1,
        type: Any = None,  # noqa: A002
    ) -> builtins.list[Message[Any]]:
        return self._run(self._inner.pop(queue, qty=qty, type=type))

    def archive(self, queue: str, target: Target, *, on: object = None) -> builtins.list[int]:
        return self._ask(queues.archive(*arguments.targets(queue, target)), on)

    def delete(self, queue: str, target: Target, *, on: object = None) -> builtins.list[int]:
        return self._ask(queues.delete(*arguments.targets(queue, target)), on)

    def set_vt(self, queue: str, target: Target, vt: timedelta, *, on: object = None) -> builtins.list[int]:
        arguments.check_span(vt, "vt")
        return self._ask(queues.set_vt(*arguments.targets(queue, target), vt), on)

    def metrics(self, queue: str) -> MessageMetrics:
        return self._run(self._inner.metrics(queue))

    def metrics_all(self) -> builtins.list[MessageMetrics]:
        return self._run(self._inner.metrics_all())

    def peek(
        self, queue: str, *, qty: int = 10, place: MessagePlace = "queue", after: int | None = None
    ) -> builtins.list[Message[Any]]:
        return self._run(self._inner.peek(queue, qty=qty, place=place, after=after))

    def requeue(
        self,
        queue: str,
        ids: Iterable[int] | None = None,
        *,
        place: MessagePlace = "dead",
        limit: int = 1000,
    ) -> dict[int, int]:
        return self._run(self._inner.requeue(queue, ids, place=place, limit=limit))

    def policy(self, queue: str) -> MessagePolicy:
        return self._run(self._inner.policy(queue))

    def put_policy(self, queue: str, **changes: Unpack[PolicyChanges]) -> MessagePolicy:
        return self._run(self._inner.put_policy(queue, **changes))

    def _ask(self, question: Ask[T], on: object) -> T:
        if on is not None:
            return borrowed.ask_sync(on, question)
        return self._run(self._inner.ask(question))
