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
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from holdfast import telemetry
from holdfast.definitions.graphs import fill
from holdfast.definitions.payloads import from_json, to_json
from holdfast.definitions.tasks import Task
from holdfast.errors import Cancel, InvalidError, OutcomeSignal, PublicError, RateLimited, Reject, Snooze
from holdfast.worker.context import Context, current
from holdfast.worker.running import TIME_LIMIT
from holdfast.worker.threads import Threads

AnyTask = Task[..., Any]
Kind = Literal["succeed", "fail", "reject", "crash", "snooze", "limited", "cancel", "release"]

MESSAGE_CHARACTERS = 4_000
TRACEBACK_CHARACTERS = 16_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended, in the words and with the body of the engine's `finish`."""

    kind: Kind
    body: bytes | None = None
    error: str | None = None


async def execute(
    task: AnyTask, args: Mapping[str, Any], parents: Mapping[str, Any], context: Context, threads: Threads
) -> Verdict:
    """Run one attempt with its time limit. Raises only CancelledError, when nobody wants the answer."""
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
        context.stop(TIME_LIMIT)
        return timed_out(task, problem)
    except asyncio.CancelledError:
        if context.cancelled or asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
        return failure("fail", RuntimeError("the task cancelled itself"))
    except (Exception, SystemExit, KeyboardInterrupt) as problem:
        return judge(task, problem)
    return verdict_of(value)


async def _run(task: AnyTask, given: dict[str, Any], context: Context, threads: Threads) -> Any:
    first = (context,) if task.wants_context else ()
    if task.is_async:
        return await task.function(*first, **given)
    return await threads.run(partial(task.function, *first, **given))


class Plan:
    """What a signature asks for, looked up once per task."""

    __slots__ = ("exact", "hints", "names", "required")

    def __init__(self, task: AnyTask) -> None:
        parameters = task.signature.parameters
        self.names = parameters.keys()
        self.required = [n for n, p in parameters.items() if p.default is p.empty]
        self.hints = {name: task.hints.get(name, Any) for name in parameters}
        self.exact = {name: kind if kind in _EXACT else None for name, kind in self.hints.items()}


_EXACT = (int, str, bool, float, type(None))


def plan_of(task: AnyTask) -> Plan:
    """Kept where cached properties are, so that it is found fast and goes with its task."""
    plan: Plan | None = task.__dict__.get("_plan")
    if plan is None:
        plan = task.__dict__["_plan"] = Plan(task)
    return plan


def arguments(task: AnyTask, args: Mapping[str, Any], parents: Mapping[str, Any]) -> dict[str, Any]:
    """The stored arguments as the signature wants them now, which may have changed since submit."""
    plan = plan_of(task)
    given: dict[str, Any] = {}
    for name, value in args.items():
        kind = cast("object", type(value))
        if name not in plan.hints:
            raise _unfit(task, plan, args)
        if kind is plan.exact[name]:
            given[name] = value
        else:
            filled = fill(value, parents) if kind is dict or kind is list else value
            given[name] = from_json(filled, plan.hints[name], what=name)
    if len(given) < len(plan.names) and not given.keys() >= set(plan.required):
        raise _unfit(task, plan, args)
    return given


def _unfit(task: AnyTask, plan: Plan, args: Mapping[str, Any]) -> InvalidError:
    wrong = [
        *(f"{name} is unknown" for name in sorted(args.keys() - plan.names)),
        *(f"{name} is missing" for name in plan.required if name not in args),
    ]
    return InvalidError(f"The arguments no longer fit {task.name}: {', '.join(wrong)}.", field="args")


_NOTHING = Verdict("succeed", b"null")


def verdict_of(value: object) -> Verdict:
    if value is None:
        return _NOTHING
    if isinstance(value, OutcomeSignal):
        name = type(value).__name__
        return failure(
            "reject",
            InvalidError(f"The task returned {name}.", fix=f"Raise it: raise {name}(...).", field="result"),
        )
    try:
        return Verdict("succeed", to_json(value, what="result"))
    except InvalidError as problem:
        return failure("reject", problem)


def timed_out(task: AnyTask, problem: BaseException | None = None, more: str = "") -> Verdict:
    problem = problem if isinstance(problem, TimeoutError) else TimeoutError()
    return failure("fail", problem, message=str(problem) or f"ran longer than {task.timeout}{more}")


def judge(task: AnyTask, problem: BaseException) -> Verdict:
    """What an exception means: try again, rest, or never again."""
    if not isinstance(problem, Exception):  # sys.exit() in a task ends the task, not the worker
        return failure("fail", problem)
    if isinstance(problem, Snooze):
        return Verdict("snooze", _body(delay_s=problem.delay.total_seconds()))
    if isinstance(problem, Cancel):
        return Verdict("cancel", _body(reason=_clean(problem.reason, MESSAGE_CHARACTERS)), problem.reason)
    if isinstance(problem, RateLimited):
        wait = problem.retry_after.total_seconds() if problem.retry_after else None
        return Verdict("limited", _body(key=problem.key, retry_after_s=wait), str(problem))
    if isinstance(problem, (Reject, *task.retry.never_for)) or not isinstance(problem, task.retry.retry_for):
        return failure("reject", problem)
    return failure("fail", problem)


def failure(kind: Kind, problem: BaseException, *, message: str | None = None) -> Verdict:
    if telemetry.heard("task.raised"):
        _tell(problem)
    told = _clean(message or str(problem) or type(problem).__name__, MESSAGE_CHARACTERS)
    lines = "".join(traceback.format_exception(problem))
    # The least wait that the other side asked for, if the exception carries it.
    wait = getattr(problem, "retry_after", None)
    body = _body(
        type="PublicError" if isinstance(problem, PublicError) else type(problem).__qualname__,
        message=told,
        traceback=_clean(lines[-TRACEBACK_CHARACTERS:], TRACEBACK_CHARACTERS),
        retry_after_s=wait.total_seconds() if isinstance(wait, timedelta) else None,
        fingerprint=fingerprint(problem),
    )
    return Verdict(kind, body, f"{type(problem).__qualname__}: {told}")


def _tell(problem: BaseException) -> None:
    context = current.get()
    if context is not None:
        telemetry.emit(
            "task.raised",
            task=context.task_id,
            job=context.job_id,
            name=context.name,
            attempt=context.attempt,
            problem=problem,
        )


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
