"""Consumers: functions that workers call with each message of a queue. This module does not run them.

A consumer handles one message at a time. When the function returns, the message is finished. When it raises,
the message is retried after a pause, and moved to the dead letters after `max_reads`. `Reject` moves it there
at once.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

from holdfast.definitions.validation import check_option_names, parse_duration
from holdfast.errors import InvalidError
from holdfast.model import Message

B = TypeVar("B")

MessageFinishAction = Literal["archive", "delete"]
DeadLetterCallback = Callable[[Message[Any], str], object]

MIN_VISIBILITY_TIMEOUT, MAX_VISIBILITY_TIMEOUT = timedelta(seconds=1), timedelta(days=7)
MAX_CONSUMER_CONCURRENCY = 10_000
MAX_QUEUE_NAME_BYTES = 47


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `@consumer`.

    name: the name of the consumer. The default is the name of the function.
    vt: how long a message stays invisible after its worker died. The default is 60 seconds.
        A running worker extends it.
    concurrency: the maximum number of messages that one worker handles at once. The default is 10.
    max_reads: how often a message is read before it moves to the dead letters. The default is the
        queue's policy.
    on_dead: a function that is called with the message and the error after the move to the dead letters.
    create: create the queue if it does not exist. The default is False.
    finish: `archive` or `delete` a message whose function returned. The default is `archive`.
    timeout: the maximum duration of one call of the function. The default is 10 minutes.

    >>> from datetime import timedelta
    >>> from holdfast import ConsumerOptions
    >>> patient: ConsumerOptions = {"concurrency": 2, "timeout": timedelta(hours=1)}
    """

    name: str | None
    vt: timedelta | float
    concurrency: int
    max_reads: int | None
    on_dead: DeadLetterCallback | None
    create: bool
    finish: MessageFinishAction
    timeout: timedelta | float


@dataclass(frozen=True, eq=False)
class Consumer(Generic[B]):
    """A function that workers call with each message of a queue. `@consumer` creates it.

    >>> from holdfast import Consumer, Message, consumer
    >>> @consumer("letters")
    ... async def deliver(message: Message[dict[str, str]]) -> None:
    ...     print(message.body["to"])
    >>> isinstance(deliver, Consumer), deliver.queue
    (True, 'letters')
    """

    function: Callable[[Message[B]], Any]
    queue: str
    name: str
    vt: timedelta = timedelta(seconds=60)
    concurrency: int = 10
    max_reads: int | None = None
    on_dead: DeadLetterCallback | None = None
    create: bool = False
    finish: MessageFinishAction = "archive"
    timeout: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        check_queue_name(self.queue)
        for field in ("vt", "timeout"):
            object.__setattr__(self, field, parse_duration(getattr(self, field), field))
        if not MIN_VISIBILITY_TIMEOUT <= self.vt <= MAX_VISIBILITY_TIMEOUT:
            raise InvalidError(
                f"vt must be between {MIN_VISIBILITY_TIMEOUT} and {MAX_VISIBILITY_TIMEOUT}, got {self.vt}.",
                fix="A running worker extends it, so 30 seconds are enough.",
                field="vt",
            )
        if not 1 <= self.concurrency <= MAX_CONSUMER_CONCURRENCY:
            raise InvalidError(
                f"concurrency must be from 1 to {MAX_CONSUMER_CONCURRENCY}, got {self.concurrency}.",
                field="concurrency",
            )
        if self.max_reads is not None and self.max_reads < 1:
            raise InvalidError(f"max_reads must be at least 1, got {self.max_reads}.", field="max_reads")
        if self.timeout <= timedelta(0):
            raise InvalidError(f"timeout must be positive, got {self.timeout}.", field="timeout")
        if self.finish not in typing.get_args(MessageFinishAction):
            raise InvalidError(f"finish must be 'archive' or 'delete', got {self.finish!r}.", field="finish")
        _check_message_parameter(self.function)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def body_type(self) -> Any:
        """The type of message bodies, from the annotation `message: Message[Body]`; Any without one."""
        parameter = next(iter(inspect.signature(self.function).parameters))
        try:
            hint = typing.get_type_hints(self.function).get(parameter)
        except (NameError, TypeError, AttributeError):
            return Any
        return typing.get_args(hint)[0] if typing.get_origin(hint) is Message else Any


def check_queue_name(name: str, *, field: str = "queue") -> None:
    """Raise InvalidError if a queue name is empty, too long or has characters that are not allowed."""
    if not name or "\0" in name:
        raise InvalidError(
            f"The name of a queue must not be empty or contain NUL, got {name!r}.", field=field
        )
    if max(len(name.encode()), len(name.lower().encode())) > MAX_QUEUE_NAME_BYTES:
        raise InvalidError(
            f"The queue name {name!r} is longer than {MAX_QUEUE_NAME_BYTES} bytes.",
            fix="Choose a shorter name.",
            field=field,
        )
    if any(text in name for text in ("$", ";", "--", "'")):
        raise InvalidError(
            f"The queue name {name!r} contains a character that is not allowed.",
            fix="Remove $ ; -- and '.",
            field=field,
        )


def _check_message_parameter(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        raise InvalidError(
            f"{function.__name__} cannot be called with a message.",
            fix="Declare one parameter: def handle(message: Message[Body]).",
            field="function",
        ) from None


class ConsumerDecorator(Protocol):
    """The decorator that `@consumer(...)` returns."""

    def __call__(self, function: Callable[[Message[B]], object], /) -> Consumer[B]: ...


def consumer(queue: str, **options: Unpack[ConsumerOptions]) -> ConsumerDecorator:
    """Declare a consumer: decorate a function that handles each message of a queue.

    `ConsumerOptions` lists the options.

    >>> from holdfast import Message, consumer
    >>> @consumer("letters", max_reads=3, create=True)
    ... async def deliver(message: Message[dict[str, str]]) -> None:
    ...     print(message.body["to"])
    """
    check_option_names(options, ConsumerOptions.__annotations__, "@consumer")
    fields: dict[str, Any] = dict(options)
    name: str | None = fields.pop("name", None)

    def decorate(function: Callable[[Message[B]], object], /) -> Consumer[B]:
        return Consumer(function, queue, name or function.__name__, **fields)

    return decorate
