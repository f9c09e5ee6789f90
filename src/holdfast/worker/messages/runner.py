"""The message runner: turns one delivered message into one outcome. It never touches the database.

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

from holdfast.definitions.payloads import convert_payload
from holdfast.errors import Cancel, InvalidError, OutcomeSignal, RateLimited, Snooze
from holdfast.model import Message
from holdfast.worker.messages.deliveries import Delivery, MessageOutcome
from holdfast.worker.text_cleaning import clean_text

MAX_CONSUMER_ERROR_CHARS = 4_000
DEFAULT_RATE_LIMIT_DELAY = timedelta(seconds=30)


def find_read_limit_error(delivery: Delivery) -> str | None:
    """Return an error text if the message was read more often than allowed, else None."""
    limit = delivery.max_reads
    if limit is not None and delivery.message.reads > limit:
        return (
            f"The message was read {delivery.message.reads} times and never finished; the limit is {limit}."
        )
    return None


def convert_message_body(delivery: Delivery) -> Message[Any]:
    """Return the message with its body converted to the consumer's type, or raise InvalidError."""
    body = convert_payload(delivery.message.body, delivery.consumer.body_type, what="body")
    return replace(delivery.message, body=body, lease=delivery)


async def run_consumer_function(delivery: Delivery, threads: ThreadPool) -> MessageOutcome:
    """Run the consumer's function and return the outcome. Raises only CancelledError.

    CancelledError means that the worker has stopped the delivery.
    """
    consumer = delivery.consumer
    try:
        message = convert_message_body(delivery)
    except InvalidError as error:
        return MessageOutcome("dead_letter", format_consumer_error(error))
    try:
        async with asyncio.timeout(consumer.timeout.total_seconds()):
            value = await call_function(consumer.function, message, threads=threads)
    except TimeoutError as error:
        if delivery.stop_reason is not None:
            raise asyncio.CancelledError(delivery.stop_reason) from error
        delivery.stop("time limit")
        return _build_failure_outcome(
            delivery, format_consumer_error(error, f"ran longer than {consumer.timeout}")
        )
    except asyncio.CancelledError:
        if delivery.stop_reason is not None or asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
        return _build_failure_outcome(delivery, "The consumer cancelled itself.")
    except OutcomeSignal as signal:
        return _build_signal_outcome(delivery, signal)
    except Exception as error:
        return _build_failure_outcome(delivery, format_consumer_error(error))
    if isinstance(value, OutcomeSignal):
        name = type(value).__name__
        error_text = f"InvalidError: the consumer returned {name}; raise it instead: raise {name}(...)"
        return MessageOutcome("dead_letter", error_text)
    return MessageOutcome(consumer.finish)


def _build_signal_outcome(delivery: Delivery, signal: OutcomeSignal) -> MessageOutcome:
    if isinstance(signal, Cancel):
        return MessageOutcome(delivery.consumer.finish)
    if isinstance(signal, Snooze):
        return MessageOutcome("delay", delay=signal.delay)
    if isinstance(signal, RateLimited):
        return MessageOutcome("delay", delay=signal.retry_after or DEFAULT_RATE_LIMIT_DELAY)
    return MessageOutcome("dead_letter", format_consumer_error(signal))


def _build_failure_outcome(delivery: Delivery, error: str) -> MessageOutcome:
    last_read = delivery.max_reads is not None and delivery.message.reads >= delivery.max_reads
    return MessageOutcome("dead_letter" if last_read else "fail", error)


async def call_function(function: Callable[..., Any], *arguments: object, threads: ThreadPool) -> Any:
    """Call an async function on the event loop, or a plain function in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: function(*arguments))


def format_consumer_error(error: BaseException, default_message: str = "") -> str:
    """Return the type and message of an error and its traceback, as text that PostgreSQL can store."""
    summary = f"{type(error).__qualname__}: {str(error) or default_message}".rstrip(": ")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    stack = "".join(traceback.format_list(frames))[-MAX_CONSUMER_ERROR_CHARS // 2 :]
    return clean_text(
        f"{summary[: MAX_CONSUMER_ERROR_CHARS // 2]}\n{stack}".rstrip(), MAX_CONSUMER_ERROR_CHARS
    )
