"""Run one claimed task to one outcome. Runs user code and never touches the database.

    claimed task -> convert arguments -> call the function -> outcome

Hosts call `run_task`: the worker's event loop (async functions), its threads (plain functions), a child
process (`process=True`), and `hf.drain` in tests. A host supplies the asyncio task in which it runs, decides
when to stop it (`Attempt.stop` with a reason), and records the outcome. What a result, an exception or a stop
means is decided by the rules in outcomes.py, so it is the same in every host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from holdfast.errors import InvalidError
from holdfast.worker.arguments import convert_arguments
from holdfast.worker.attempts import Attempt
from holdfast.worker.outcomes import (
    TaskOutcome,
    build_error_outcome,
    build_exception_outcome,
    build_result_outcome,
    build_stop_outcome,
)
from holdfast.worker.plain_function_context import mark_plain_function
from holdfast.worker.thread_pool import TaskThreadPool


async def run_task(
    attempt: Attempt, threads: TaskThreadPool, on_begin: Callable[[], None] | None = None
) -> TaskOutcome | None:
    """Run the function of a claimed task. Return its outcome, or None if there is nothing to record.

    `on_begin` is called right before the task's own code: after its arguments were converted.

    Async functions run in the calling asyncio task, which `Attempt.stop` cancels. Plain functions run in a
    thread, which cannot be interrupted: the runner waits for it until it returns or the host gives up.
    """
    attempt.began = True
    task = attempt.task
    try:
        if attempt.stop_reason is not None:  # stopped before its first step
            raise asyncio.CancelledError(attempt.stop_reason)
        try:
            arguments = convert_arguments(task, attempt.claimed.args, attempt.claimed.parents)
        except InvalidError as error:
            return build_error_outcome("reject", error)
        context = (attempt.context,) if task.takes_context else ()
        if on_begin is not None:
            on_begin()
        if task.is_async:
            return build_result_outcome(await task.function(*context, **arguments))
        if attempt.context is not None:
            mark_plain_function(attempt.context)
        attempt.on_stop = leave_thread_running
        return build_result_outcome(await threads.run(partial(task.function, *context, **arguments)))
    except asyncio.CancelledError as interruption:
        return build_stop_outcome(attempt, interruption)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return build_exception_outcome(task, error)


def leave_thread_running(_: str) -> None:
    """Do nothing: a plain function notices the stop at its next `ctx.check()`."""
