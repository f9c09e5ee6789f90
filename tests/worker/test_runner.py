from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from holdfast.definitions.tasks import Ctx, RetryPolicy, Task, task
from holdfast.engine.leases import LeasedTask
from holdfast.errors import Cancel, RateLimited, Reject, Snooze
from holdfast.worker.attempts import STOP_REASON_TIME_LIMIT, Attempt
from holdfast.worker.context import TaskContext
from holdfast.worker.outcomes import compute_fingerprint
from holdfast.worker.runner import run_task
from holdfast.worker.thread_pool import TaskThreadPool


@pytest.fixture
def threads() -> Generator[TaskThreadPool]:
    pool = TaskThreadPool(2)
    yield pool
    pool.close()


def create_attempt(task: Task[..., Any], args: dict[str, Any], parents: dict[str, Any]) -> Attempt:
    claimed = LeasedTask(
        id=uuid4(),
        attempt=3,
        nonce=1,
        job_id=None,
        name=None,
        type=task.name,
        queue=task.queue,
        args=args,
        parents=parents,
        suspect=False,
        lease_s=60.0,
        timeout_s=task.timeout.total_seconds(),
        max_attempts=5,
    )
    context = TaskContext(task_id="t", job_id="j", attempt=3, deadline=datetime.now(UTC))
    return Attempt(claimed, task, context, started_at=time.monotonic(), renewed_at=time.monotonic())


Run = Any


@pytest.fixture
def run(threads: TaskThreadPool) -> Run:
    """Run a task as a host does: in an asyncio task, with a timer for its time limit."""

    async def run(t: Task[..., Any], parents: dict[str, Any] | None = None, **args: Any) -> tuple[str, Any]:
        attempt = create_attempt(t, args, parents or {})
        attempt.runner = asyncio.create_task(run_task(attempt, threads))
        timer = asyncio.get_running_loop().call_later(
            attempt.claimed.timeout_s, attempt.stop, STOP_REASON_TIME_LIMIT
        )
        outcome = await attempt.runner
        timer.cancel()
        return outcome.kind, None if outcome.body is None else msgspec.json.decode(outcome.body)

    return run


@task
async def asynchronous(ctx: Ctx, x: int) -> dict[str, int]:
    return {"x": x, "attempt": ctx.attempt}


@task
def plain(x: int, when: datetime | None = None) -> str:
    return f"{x} {when:%Y}" if when else str(x)


@task
def returns(value: str) -> Any:
    values: dict[str, Any] = {
        "signal": Snooze(timedelta(minutes=2)),
        "nan": float("nan"),
        "object": object(),
        "none": None,
    }
    return values[value]


class PatientError(Exception):
    retry_after = timedelta(seconds=30)


@task(
    retry=RetryPolicy(
        never_for=(KeyError,), retry_for=(OSError, KeyError, PatientError, RuntimeError, SystemError)
    )
)
def raises(what: str) -> None:
    raise {
        "os": OSError("no route"),
        "key": KeyError("k"),
        "other": ValueError("v"),
        "snooze": Snooze(timedelta(minutes=2)),
        "cancel": Cancel("gone\0"),
        "reject": Reject("never"),
        "rate": RateLimited("openai", timedelta(seconds=7)),
        "patient": PatientError(),
        "dirty": RuntimeError("a\0b\ud800" + "x" * 5_000_000),
        "silent": SystemError(),
    }[what]


async def test_async_and_plain_functions_succeed_with_their_value(run: Run) -> None:
    assert await run(asynchronous, x=2) == ("succeed", {"x": 2, "attempt": 3})
    assert await run(plain, x=2) == ("succeed", "2")


async def test_arguments_are_converted_to_the_annotated_types(run: Run) -> None:
    assert await run(plain, x=2, when="2026-11-15T00:00:00Z") == ("succeed", "2 2026")


async def test_results_of_parent_tasks_are_passed_as_arguments(run: Run) -> None:
    assert await run(plain, {"before": 7}, x={"holdfast:result": "before"}) == ("succeed", "7")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"x": "no number"}, "x does not have the expected type"),
        ({}, "x is missing"),
        ({"x": 1, "y": 2}, "y is unknown"),
        ({"x": {"holdfast:result": "before"}}, "refer to the result of 'before'"),
    ],
)
async def test_invalid_stored_arguments_are_rejected_with_the_field(
    run: Run, args: dict[str, Any], says: str
) -> None:
    kind, body = await run(plain, **args)
    assert kind == "reject"
    assert says in body["message"]


async def test_raised_signals_decide_the_outcome(run: Run) -> None:
    assert await run(raises, what="snooze") == ("snooze", {"delay_s": 120})
    assert await run(raises, what="cancel") == ("cancel", {"reason": "gone\N{REPLACEMENT CHARACTER}"})
    assert await run(returns, value="none") == ("succeed", None)


async def test_a_returned_signal_is_rejected_with_the_advice_to_raise_it(run: Run) -> None:
    kind, body = await run(returns, value="signal")
    assert (kind, body["type"]) == ("reject", "InvalidError")
    assert body["message"] == "The task returned Snooze. Raise it: raise Snooze(...)."


@pytest.mark.parametrize("value", ["nan", "object"])
async def test_result_that_is_not_json_is_rejected(run: Run, value: str) -> None:
    kind, body = await run(returns, value=value)
    assert kind == "reject"
    assert "result" in body["message"]


@pytest.mark.parametrize(
    ("what", "kind", "error"),
    [
        ("os", "fail", "OSError"),
        ("key", "reject", "KeyError"),
        ("other", "reject", "ValueError"),
        ("reject", "reject", "Reject"),
    ],
)
async def test_exceptions_follow_the_retry_policy(run: Run, what: str, kind: str, error: str) -> None:
    got, body = await run(raises, what=what)
    assert (got, body["type"]) == (kind, error)
    assert "raises" in body["traceback"]
    assert body["fingerprint"] == f"{error} test_runner.py:raises"


async def test_retry_after_of_an_exception_is_recorded(run: Run) -> None:
    assert await run(raises, what="rate") == ("limited", {"key": "openai", "retry_after_s": 7})
    kind, body = await run(raises, what="patient")
    assert (kind, body["retry_after_s"]) == ("fail", 30)


async def test_error_message_is_truncated_and_cleaned(run: Run) -> None:
    kind, body = await run(raises, what="dirty")
    assert kind == "fail"
    assert len(body["message"]) <= 4000
    assert "\0" not in body["message"]
    kind, body = await run(raises, what="silent")
    assert body["message"] == "SystemError"


async def test_task_fails_after_its_time_limit(run: Run) -> None:
    @task(timeout=timedelta(milliseconds=20))
    async def sleepy() -> None:
        await asyncio.Event().wait()

    kind, body = await run(sleepy)
    assert (kind, body["type"]) == ("fail", "TimeoutError")
    assert "ran longer than 0:00:00.02" in body["message"]


async def test_a_timeout_of_the_task_s_own_is_an_ordinary_failure(run: Run) -> None:
    @task
    async def own() -> None:
        raise TimeoutError("the site did not answer")

    kind, body = await run(own)
    assert (kind, body["message"]) == ("fail", "the site did not answer")


async def test_task_that_calls_sys_exit_fails(run: Run) -> None:
    @task
    def leaves() -> None:
        sys.exit(3)

    kind, body = await run(leaves)
    assert (kind, body["type"], body["message"]) == ("fail", "SystemExit", "3")


async def test_a_task_that_cancels_itself_fails(run: Run) -> None:
    @task
    async def selfish() -> None:
        raise asyncio.CancelledError

    kind, body = await run(selfish)
    assert kind == "fail"
    assert "cancelled itself" in body["message"]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("lease lost", None),
        ("cancelled", None),
        ("released", "release"),
        ("lease not renewed in time", "release"),
    ],
)
async def test_a_stopped_attempt_ends_by_its_reason(
    threads: TaskThreadPool, reason: str, kind: str | None
) -> None:
    started = asyncio.Event()

    @task
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    attempt = create_attempt(waits, {}, {})
    attempt.runner = asyncio.create_task(run_task(attempt, threads))
    await started.wait()
    attempt.stop(reason)
    outcome = await attempt.runner
    assert (outcome.kind if outcome else None) == kind


async def test_an_attempt_stopped_before_its_first_step_does_not_run(threads: TaskThreadPool) -> None:
    @task
    async def never() -> None:
        raise AssertionError("ran")

    attempt = create_attempt(never, {}, {})
    attempt.runner = asyncio.create_task(run_task(attempt, threads))
    attempt.stop("released")
    outcome = await attempt.runner
    assert outcome.kind == "release"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_an_exception_that_cannot_be_printed_is_recorded(run: Run) -> None:
    @task
    async def unprintable() -> None:
        raise UnprintableError

    kind, body = await run(unprintable)
    assert (kind, body["type"], body["message"]) == (
        "fail",
        "UnprintableError",
        "(ValueError while printing)",
    )


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_retry_policy_applies_to_a_timeout_error_of_the_task(run: Run, is_async: bool) -> None:
    policy = RetryPolicy(retries=3, never_for=(TimeoutError,))

    @task(retry=policy)
    async def own_async() -> None:
        raise TimeoutError("no response")

    @task(retry=policy)
    def own_plain() -> None:
        raise TimeoutError("no response")

    kind, body = await run(own_async if is_async else own_plain)
    assert (kind, body["type"]) == ("reject", "TimeoutError")


def test_fingerprints_ignore_the_message() -> None:
    def fail(text: str) -> str:
        try:
            raise ValueError(text)
        except ValueError as error:
            return compute_fingerprint(error)

    assert fail("id 17") == fail("id 18") == "ValueError test_runner.py:fail"
