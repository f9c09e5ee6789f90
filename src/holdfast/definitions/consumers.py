"""How users say what is done with messages: `@consumer`. Passive values; the worker runs them.

A consumer takes one message at a time. Returning finishes the message; raising makes it rest and come back,
and after `max_reads` it goes to the dead letters with its error. `Reject` sends it there at once.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

from holdfast.errors import InvalidError
from holdfast.model import Message

B = TypeVar("B")

Finish = Literal["archive", "delete"]
OnDead = Callable[[Message[Any], str], object]

LEAST_VT, MOST_VT = timedelta(seconds=1), timedelta(days=7)
MOST_AT_ONCE = 10_000


class ConsumerOptions(TypedDict, total=False):
    """What may be said about a consumer besides its queue.

    vt: how long a message stays invisible to others when its worker dies; extended while the function runs
    concurrency: messages that are handled at once, per worker
    max_reads: a message is given to the function at most so often, then it is dead
    on_dead: called with the message and the error after it went to the dead letters
    create: make the queue when it is missing
    finish: what happens to a message whose function returned
    timeout: the most one call of the function may take
    """

    name: str | None
    vt: timedelta
    concurrency: int
    max_reads: int | None
    on_dead: OnDead | None
    create: bool
    finish: Finish
    timeout: timedelta


@dataclass(frozen=True, eq=False)
class Consumer(Generic[B]):
    """A function that workers call with each message of a queue."""

    function: Callable[[Message[B]], Any]
    queue: str
    name: str
    vt: timedelta = timedelta(seconds=60)
    concurrency: int = 10
    max_reads: int | None = None
    on_dead: OnDead | None = None
    create: bool = False
    finish: Finish = "archive"
    timeout: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        check_queue_name(self.queue)
        if not LEAST_VT <= self.vt <= MOST_VT:
            raise InvalidError(
                f"vt must be between {LEAST_VT} and {MOST_VT}, got {self.vt}.",
                fix="It is extended while the function runs, so half a minute is plenty.",
                field="vt",
            )
        if not 1 <= self.concurrency <= MOST_AT_ONCE:
            raise InvalidError(
                f"concurrency must be 1 to {MOST_AT_ONCE}, got {self.concurrency}.", field="concurrency"
            )
        if self.max_reads is not None and self.max_reads < 1:
            raise InvalidError(f"max_reads must be at least 1, got {self.max_reads}.", field="max_reads")
        if self.timeout <= timedelta(0):
            raise InvalidError(f"timeout must be positive, got {self.timeout}.", field="timeout")
        if self.finish not in typing.get_args(Finish):
            raise InvalidError(f"finish is 'archive' or 'delete', not {self.finish!r}.", field="finish")
        _check_takes_a_message(self.function)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def body_type(self) -> Any:
        """What the body of a message must fit, from `msg: Message[Body]`; Any when nothing is said."""
        first = next(iter(inspect.signature(self.function).parameters))
        try:
            hint = typing.get_type_hints(self.function).get(first)
        except (NameError, TypeError, AttributeError):
            return Any
        return typing.get_args(hint)[0] if typing.get_origin(hint) is Message else Any


def check_queue_name(name: str, *, field: str = "queue") -> None:
    """The rules of the database, told before anything is sent."""
    if not name or "\0" in name:
        raise InvalidError(f"A queue needs a name, got {name!r}.", field=field)
    if max(len(name.encode()), len(name.lower().encode())) > 47:
        raise InvalidError(
            f"Queue name {name!r} is longer than 47 bytes.", fix="Choose a shorter one.", field=field
        )
    if any(mark in name for mark in ("$", ";", "--", "'")):
        raise InvalidError(
            f"Queue name {name!r} has a character that is not allowed.",
            fix="Leave out $ ; -- and '.",
            field=field,
        )


def _check_takes_a_message(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        raise InvalidError(
            f"{function.__name__} cannot be called with a message.",
            fix="A consumer takes one argument: def handle(msg: Message[Body]).",
            field="function",
        ) from None


class ConsumerDecorator(Protocol):
    def __call__(self, function: Callable[[Message[B]], object], /) -> Consumer[B]: ...


def consumer(queue: str, **options: Unpack[ConsumerOptions]) -> ConsumerDecorator:
    """Make a function the consumer of a queue: `@consumer(queue="letters", max_reads=3)`."""
    given: dict[str, Any] = dict(options)
    name: str | None = given.pop("name", None)

    def decorate(function: Callable[[Message[B]], object], /) -> Consumer[B]:
        return Consumer(function, queue, name or function.__name__, **given)

    return decorate
