"""One message to one ending. Runs user code and never touches the database.

Returning or raising `Cancel` finishes the message. `Snooze` and `RateLimited` delay it. `Reject` moves it to
the dead letters. Any other exception is a failed read, which moves the message to the dead letters after the
last allowed read.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import Executor as ThreadPool
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.definitions.payloads import from_json
from holdfast.errors import Cancel, InvalidError, OutcomeSignal, RateLimited, Snooze
from holdfast.model import Message
from holdfast.worker.messages.deliveries import Delivery, Ending

ERROR_CHARACTERS = 4_000
RATE_LIMITED = timedelta(seconds=30)  # when the other side did not say for how long


def unfit(delivery: Delivery) -> str | None:
    """Why the message is not given to the function at all, if so."""
    limit = delivery.max_reads
    if limit is not None and delivery.message.reads > limit:
        return f"read {delivery.message.reads} times without being finished; {limit} are allowed"
    return None


def typed(delivery: Delivery) -> Message[Any]:
    """The message as the function wants it. InvalidError when the body does not fit."""
    body = from_json(delivery.message.body, delivery.consumer.body_type, what="body")
    return replace(delivery.message, body=body, hold=delivery)


async def handle(delivery: Delivery, threads: ThreadPool) -> Ending:
    """Raises only CancelledError, when the worker no longer wants the answer."""
    consumer = delivery.consumer
    try:
        message = typed(delivery)
    except InvalidError as problem:
        return Ending("bury", told(problem))
    try:
        async with asyncio.timeout(consumer.timeout.total_seconds()):
            value = await call(consumer.function, message, threads=threads)
    except TimeoutError as problem:
        if delivery.stopped is not None:
            raise asyncio.CancelledError(delivery.stopped) from problem
        delivery.stop("time limit")
        return _failed(delivery, told(problem, f"ran longer than {consumer.timeout}"))
    except asyncio.CancelledError:
        if delivery.stopped is not None or asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
        return _failed(delivery, "the consumer cancelled itself")
    except OutcomeSignal as signal:
        return _signalled(delivery, signal)
    except Exception as problem:
        return _failed(delivery, told(problem))
    if isinstance(value, OutcomeSignal):
        name = type(value).__name__
        return Ending("bury", f"InvalidError: the consumer returned {name}; raise it: raise {name}(...)")
    return Ending(consumer.finish)


def _signalled(delivery: Delivery, signal: OutcomeSignal) -> Ending:
    if isinstance(signal, Cancel):
        return Ending(delivery.consumer.finish)
    if isinstance(signal, Snooze):
        return Ending("rest", delay=signal.delay)
    if isinstance(signal, RateLimited):
        return Ending("rest", delay=signal.retry_after or RATE_LIMITED)
    return Ending("bury", told(signal))


def _failed(delivery: Delivery, error: str) -> Ending:
    spent = delivery.max_reads is not None and delivery.message.reads >= delivery.max_reads
    return Ending("bury" if spent else "fail", error)


async def call(function: Callable[..., Any], *given: object, threads: ThreadPool) -> Any:
    """Async functions on the loop, plain ones in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*given)
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: function(*given))


def told(problem: BaseException, otherwise: str = "") -> str:
    """Type and message, then where it happened; without what the database cannot keep."""
    first = f"{type(problem).__qualname__}: {str(problem) or otherwise}".rstrip(": ")
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename != __file__]
    place = "".join(traceback.format_list(frames))[-ERROR_CHARACTERS // 2 :]
    text = f"{first[: ERROR_CHARACTERS // 2]}\n{place}".rstrip()
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
