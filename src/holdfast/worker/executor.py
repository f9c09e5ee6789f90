"""One leased task to one verdict. Runs user code; never touches the database and never decides about retries
beyond what the task itself said.

Async tasks run on the loop, plain functions in threads. Whatever user code does, exactly one verdict comes
out: a value that cannot be stored, a signature that no longer fits, a time limit, or a lease that was lost
are verdicts too.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from concurrent.futures import Executor as ThreadPool
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.definitions import Cancel, Snooze, Task
from holdfast.errors import InvalidError, RateLimited, Reject
from holdfast.graphs import fill
from holdfast.payloads import from_json, to_json
from holdfast.worker.context import Context

AnyTask = Task[..., Any]
Kind = Literal["succeed", "fail", "reject", "snooze", "limited", "cancel", "release"]

MESSAGE_CHARACTERS = 4_000
TRACEBACK_CHARACTERS = 16_000


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended, in the words and with the body of the engine's `finish`."""

    kind: Kind
    body: bytes | None = None
    error: str | None = None


async def execute(
    task: AnyTask, args: Mapping[str, Any], parents: Mapping[str, Any], context: Context, threads: ThreadPool
) -> Verdict:
    """Run one attempt. Raises only CancelledError, when the worker no longer wants the answer."""
    try:
        given = arguments(task, args, parents)
    except InvalidError as problem:
        return failure("reject", problem)
    try:
        async with asyncio.timeout(task.timeout.total_seconds()):
            value = await _run(task, given, context, threads)
    except TimeoutError as problem:
        if context.cancelled:
            raise
        context.stop("time limit")
        return failure("fail", problem, message=str(problem) or f"ran longer than {task.timeout}")
    except asyncio.CancelledError:
        if context.cancelled or asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
        return failure("fail", RuntimeError("the task cancelled itself"))
    except Exception as problem:
        return judge(task, problem)
    return verdict_of(value)


async def _run(task: AnyTask, given: dict[str, Any], context: Context, threads: ThreadPool) -> Any:
    first = (context,) if task.wants_context else ()
    if task.is_async:
        return await task.function(*first, **given)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, lambda: task.function(*first, **given))


def arguments(task: AnyTask, args: Mapping[str, Any], parents: Mapping[str, Any]) -> dict[str, Any]:
    """The stored arguments as the signature wants them now, which may have changed since submit."""
    hints = task.hints
    known = task.signature.parameters
    unknown = args.keys() - known.keys()
    missing = [n for n, p in known.items() if p.default is p.empty and n not in args]
    if unknown or missing:
        wrong = [
            *(f"{name} is unknown" for name in sorted(unknown)),
            *(f"{name} is missing" for name in missing),
        ]
        raise InvalidError(f"The arguments no longer fit {task.name}: {', '.join(wrong)}.", field="args")
    filled: Any = fill(dict(args), parents)
    return {name: from_json(value, hints.get(name, Any), what=name) for name, value in filled.items()}


def verdict_of(value: object) -> Verdict:
    if isinstance(value, Snooze):
        return Verdict("snooze", _body(delay_s=value.delay.total_seconds()))
    if isinstance(value, Cancel):
        return Verdict("cancel", _body(reason=_clean(value.reason, MESSAGE_CHARACTERS)), value.reason)
    try:
        return Verdict("succeed", to_json(value, what="result"))
    except InvalidError as problem:
        return failure("reject", problem)


def judge(task: AnyTask, problem: Exception) -> Verdict:
    """What an exception means: try again, rest, or never again."""
    if isinstance(problem, RateLimited):
        wait = problem.retry_after.total_seconds() if problem.retry_after else None
        return Verdict("limited", _body(key=problem.key, retry_after_s=wait), str(problem))
    if isinstance(problem, (Reject, *task.retry.never_for)) or not isinstance(problem, task.retry.retry_for):
        return failure("reject", problem)
    return failure("fail", problem)


def failure(kind: Kind, problem: BaseException, *, message: str | None = None) -> Verdict:
    told = _clean(message or str(problem) or type(problem).__name__, MESSAGE_CHARACTERS)
    lines = "".join(traceback.format_exception(problem))
    # The least wait that the other side asked for, if the exception carries it.
    wait = getattr(problem, "retry_after", None)
    body = _body(
        type=type(problem).__qualname__,
        message=told,
        traceback=_clean(lines[-TRACEBACK_CHARACTERS:], TRACEBACK_CHARACTERS),
        retry_after_s=wait.total_seconds() if isinstance(wait, timedelta) else None,
        fingerprint=fingerprint(problem),
    )
    return Verdict(kind, body, f"{type(problem).__qualname__}: {told}")


def fingerprint(problem: BaseException) -> str:
    """Type and place: failures with one cause have one fingerprint, whatever their message says."""
    frames = traceback.extract_tb(problem.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
    return _clean(f"{type(problem).__qualname__} {place}", 200)


def _body(**fields: object) -> bytes:
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def _clean(text: str, limit: int) -> str:
    """Recording a failure must not fail: no NUL, no lone surrogate, no fifty megabytes."""
    return text[:limit].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
