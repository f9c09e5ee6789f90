"""One task per outcome rule and host, so that every rule runs in every host of the runner.

A host runs a rule as an async function (`loop`, `process`, `drain`) or as a plain function in a thread
(`thread`, `process_thread`, `drain_thread`). The task of rule R for host H is the module variable `R_H`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast import Cancel, Ctx, RateLimited, Reject, RetryPolicy, Snooze, Task, task

HOSTS = ("loop", "thread", "process", "process_thread", "drain", "drain_thread")
HOUR = timedelta(hours=1)
# A retry is due after an hour, so that a test sees the outcome of the first attempt.
RETRY = RetryPolicy(retries=3, base=HOUR, cap=HOUR, jitter=0)


@task(queue="children")
async def child(n: int) -> None:
    """Stays ready: no host of these tests serves its queue."""


def compute(x: int) -> int:
    return 2 * x


def return_value() -> dict[str, int]:
    return {"n": 1}


def return_none() -> None:
    return None


def return_object() -> object:
    return object()


def return_signal() -> Snooze:
    return Snooze(HOUR)


def raise_error() -> None:
    raise ValueError("no")


def raise_own_timeout() -> None:
    raise TimeoutError("the site did not answer")


def snooze() -> None:
    raise Snooze(HOUR)


def cancel() -> None:
    raise Cancel("nothing to do")


def reject() -> None:
    raise Reject("no such page")


def rate_limit() -> None:
    raise RateLimited("conformance", retry_after=HOUR)


def exit_interpreter() -> None:
    sys.exit(3)


def cancel_itself() -> None:
    raise asyncio.CancelledError


# The rules that need no context, with the retry policy of their task.
SIMPLE_RULES: dict[str, tuple[Callable[[], Any], RetryPolicy]] = {
    "returns": (return_value, RETRY),
    "returns_none": (return_none, RETRY),
    "returns_object": (return_object, RETRY),
    "returns_signal": (return_signal, RETRY),
    "raises": (raise_error, RETRY),
    "raises_last": (raise_error, RetryPolicy(retries=0)),
    "never_for": (raise_error, RetryPolicy(retries=3, base=HOUR, cap=HOUR, never_for=(ValueError,))),
    "retry_for": (raise_error, RetryPolicy(retries=3, base=HOUR, cap=HOUR, retry_for=(OSError,))),
    "own_timeout": (raise_own_timeout, RETRY),
    "own_timeout_never": (
        raise_own_timeout,
        RetryPolicy(retries=3, base=HOUR, cap=HOUR, never_for=(TimeoutError,)),
    ),
    "snoozes": (snooze, RetryPolicy(retries=3, never_for=(Exception,))),
    "cancels": (cancel, RETRY),
    "rejects": (reject, RETRY),
    "rate_limited": (rate_limit, RETRY),
    "exits": (exit_interpreter, RETRY),
    "cancels_itself": (cancel_itself, RETRY),
}


def as_async(action: Callable[[], Any]) -> Callable[..., Any]:
    async def run(ctx: Ctx) -> Any:
        await asyncio.sleep(0)
        return action()

    return run


def as_plain(action: Callable[[], Any]) -> Callable[..., Any]:
    def run(ctx: Ctx) -> Any:
        return action()

    return run


async def wait_forever_async(ctx: Ctx) -> None:
    await ctx.report(0, phase="started")
    await asyncio.Event().wait()


def wait_forever_plain(ctx: Ctx) -> None:
    ctx.blocking.report(0, phase="started")
    while True:
        ctx.check()
        time.sleep(0.01)


async def take_number_async(ctx: Ctx, x: int) -> int:
    return x


def take_number_plain(ctx: Ctx, x: int) -> int:
    return x


async def step_async(ctx: Ctx) -> None:
    await ctx.report(1, 4, phase="stepping", message="one")
    result = await ctx.step("double", compute, 21)
    raise ValueError(f"after step {result}")


def step_plain(ctx: Ctx) -> None:
    ctx.blocking.report(1, 4, phase="stepping", message="one")
    result = ctx.blocking.step("double", compute, 21)
    raise ValueError(f"after step {result}")


async def submit_async(ctx: Ctx) -> str:
    await ctx.submit(child(1), key="first")
    await ctx.submit(child(2), after=[ctx.task_id])
    return "submitted"


def submit_plain(ctx: Ctx) -> str:
    ctx.blocking.submit(child(1), key="first")
    ctx.blocking.submit(child(2), after=[ctx.task_id])
    return "submitted"


async def save_async(ctx: Ctx) -> str:
    file = await ctx.save("a.txt", b"content", meta={"pages": 1})
    async with ctx.open(file) as reader:
        return (await reader.read()).decode()


def save_plain(ctx: Ctx) -> str:
    file = ctx.blocking.save("a.txt", b"content", meta={"pages": 1})
    with ctx.blocking.open(file) as reader:
        return reader.read().decode()


async def log_async(ctx: Ctx) -> None:
    ctx.log("first line", level="warning", number=1)
    raise Reject("logged")


def log_plain(ctx: Ctx) -> None:
    ctx.log("first line", level="warning", number=1)
    raise Reject("logged")


# The rules that need a context: the async function, the plain function, and options of the task.
CONTEXT_RULES: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "time_limit": (wait_forever_async, wait_forever_plain, {"timeout": timedelta(seconds=5)}),
    "job_cancelled": (wait_forever_async, wait_forever_plain, {}),
    "lease_lost": (wait_forever_async, wait_forever_plain, {"lease": timedelta(seconds=4)}),
    "bad_arguments": (take_number_async, take_number_plain, {}),
    "steps": (step_async, step_plain, {}),
    "submits": (submit_async, submit_plain, {}),
    "saves": (save_async, save_plain, {}),
    "logs": (log_async, log_plain, {}),
}


def define(rule: str, host: str, function: Callable[..., Any], options: dict[str, Any]) -> Task[..., Any]:
    return Task(function, f"{rule}_{host}", queue=host, process=host.startswith("process"), **options)


def define_tasks() -> dict[str, Task[..., Any]]:
    tasks: dict[str, Task[..., Any]] = {}
    for host in HOSTS:
        is_plain = host.endswith("thread")
        for rule, (action, policy) in SIMPLE_RULES.items():
            function = as_plain(action) if is_plain else as_async(action)
            tasks[f"{rule}_{host}"] = define(rule, host, function, {"retry": policy})
        for rule, (async_function, plain_function, options) in CONTEXT_RULES.items():
            function = plain_function if is_plain else async_function
            tasks[f"{rule}_{host}"] = define(rule, host, function, {"retry": RETRY, **options})
    return tasks


TASKS = define_tasks()
globals().update(TASKS)
