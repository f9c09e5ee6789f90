"""Claimed tasks to verdicts: starts each where it belongs, watches its time, and hands the verdict on.

Async tasks run on the loop, plain functions in threads, `process=True` ones and suspects (a worker died
while they ran) in child processes. One timer serves all time limits. What does not end within the overtime
after its limit is given up: the attempt has failed and its slot is free, whatever the code still does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import msgspec

from holdfast import telemetry
from holdfast.engine.leases import Claimed, Outcome
from holdfast.errors import InvalidError
from holdfast.tracing import LABEL, Tracing
from holdfast.worker.context import current
from holdfast.worker.contexts import Contexts
from holdfast.worker.executor import AnyTask, Verdict, arguments, failure, judge, timed_out, verdict_of
from holdfast.worker.outbox import Outbox
from holdfast.worker.running import HANDED_BACK, RELEASED, TIME_LIMIT, Attempt, Running
from holdfast.worker.threads import Threads

OVERTIME = 2.0


class Isolation(Protocol):
    """Child processes, one task at a time each. `types` are the tasks they know."""

    types: Collection[str]

    async def run(self, attempt: Attempt) -> Verdict | None: ...


class Attempts:
    def __init__(
        self,
        tasks: Mapping[str, AnyTask],
        running: Running,
        outbox: Outbox,
        threads: Threads,
        isolation: Isolation | None,
        contexts: Contexts,
    ) -> None:
        self._tasks = tasks
        self._running = running
        self._outbox = outbox
        self._threads = threads
        self._isolation = isolation
        self._contexts = contexts
        self._capture = contexts.capturing
        self._tracing = contexts.tracing
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self.started = 0
        self.ended = 0

    def isolated(self, claimed: Claimed) -> bool:
        """Whether it runs in a child: because it asks for it, or because it may have killed a worker."""
        return (
            self._isolation is not None
            and (claimed.crashes > 0 or self._tasks[claimed.type].process)
            and claimed.type in self._isolation.types
        )

    def launch(self, tasks: Sequence[Claimed], asked_at: float) -> None:
        now = time.monotonic()
        create = asyncio.get_running_loop().create_task
        first = float("inf")
        for claimed in tasks:
            task = self._tasks[claimed.type]
            wanted = task.wants_context or self._capture or self.isolated(claimed)
            context = self._contexts.make(claimed) if wanted else None
            attempt = Attempt(claimed, task, context, started_at=now, renewed_at=asked_at)
            attempt.isolated = self.isolated(claimed)
            self._running.add(attempt)
            first = min(first, claimed.timeout_s)
            attempt.runner = create(self._run(attempt))
        self.started += len(tasks)
        if now + first < self._timer_at:
            self._set_timer(now + first)

    async def _run(self, attempt: Attempt) -> None:
        attempt.began = True
        context = attempt.context
        current.set(context)
        if telemetry.heard("task.started"):
            telemetry.emit("task.started", **_about(attempt))
        verdict: Verdict | None
        try:
            if attempt.stopped is not None:
                raise asyncio.CancelledError(attempt.stopped)
            verdict = await (self._traced(attempt) if self._tracing else self._verdict(attempt))
        except asyncio.CancelledError:
            verdict = self._interrupted(attempt)
        except (Exception, SystemExit, KeyboardInterrupt) as problem:
            verdict = judge(attempt.task, problem)
        if context is not None and context.lines:
            await self._contexts.ended(context)
        self._end(attempt, verdict)

    async def _traced(self, attempt: Attempt) -> Verdict | None:
        """The same inside a span, below that of whoever submitted the task."""
        tracing, claimed = cast("Tracing", self._tracing), attempt.claimed
        with tracing.running(_about(attempt), claimed.trace) as span:
            # For a child process, whose spans hang below this one.
            attempt.claimed = msgspec.structs.replace(claimed, trace=tracing.position().get(LABEL))
            try:
                verdict = await self._verdict(attempt)
            except Exception as problem:
                span.raised(problem)
                verdict = judge(attempt.task, problem)
            span.ended(verdict.kind if verdict else "stopped", verdict.error if verdict else None)
            return verdict

    async def _verdict(self, attempt: Attempt) -> Verdict | None:
        task, claimed, context = attempt.task, attempt.claimed, attempt.context
        if self._isolation is not None and attempt.isolated:
            return await self._isolation.run(attempt)
        try:
            given = arguments(task, claimed.args, claimed.parents)
        except InvalidError as problem:
            return failure("reject", problem)
        first = (context,) if task.wants_context else ()
        if task.is_async:
            return verdict_of(await task.function(*first, **given))
        # A thread cannot be interrupted: it is waited for, until it ends or is given up.
        attempt.on_stop = _let_it_see
        return verdict_of(await self._threads.run(partial(task.function, *first, **given)))

    def _interrupted(self, attempt: Attempt) -> Verdict | None:
        if attempt.stopped is None:
            return failure("fail", RuntimeError("the task cancelled itself"))
        if attempt.stopped == TIME_LIMIT:
            return timed_out(attempt.task)
        return Verdict("release", None, attempt.stopped) if attempt.stopped in HANDED_BACK else None

    def _end(self, attempt: Attempt, verdict: Verdict | None) -> None:
        if attempt.ended:
            return
        attempt.ended = True
        self.ended += 1
        if telemetry.heard("task.finished"):
            telemetry.emit(
                "task.finished",
                **_about(attempt),
                outcome=verdict.kind if verdict else "stopped",
                seconds=time.monotonic() - attempt.started_at,
                error=verdict.error if verdict else None,
            )
        if verdict is not None:
            claimed = attempt.claimed
            self._outbox.put(
                Outcome(
                    id=claimed.id,
                    attempt=claimed.attempt,
                    nonce=claimed.nonce,
                    kind=verdict.kind,
                    body=verdict.body,
                )
            )
        else:
            self._outbox.forget(attempt.claimed.id)
        self._running.remove(attempt)

    # Time limits

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        pause = max(at - time.monotonic(), 0.001)
        self._timer = asyncio.get_running_loop().call_later(pause, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        now = time.monotonic()
        first = float("inf")
        for attempt in self._running.all():
            deadline = attempt.deadline
            if now >= deadline + OVERTIME:
                self._give_up(attempt)
                continue
            if now >= deadline:
                attempt.stop(TIME_LIMIT)
                deadline += OVERTIME
            first = min(first, deadline)
        self._timer, self._timer_at = None, float("inf")
        if first < float("inf"):
            self._set_timer(first)

    def _give_up(self, attempt: Attempt) -> None:
        """It was told to stop and did not. Its verdict is ours now, and what it still does is not wanted."""
        attempt.mark_stopped(TIME_LIMIT)
        if attempt.on_stop is _let_it_see:
            self._threads.give_up()
        lost = attempt.stopped not in {TIME_LIMIT, RELEASED}  # it may still run: not handed back
        self._end(attempt, None if lost else timed_out(attempt.task, more=" and did not stop when told to"))


def _let_it_see(_: str) -> None:
    """A plain function sees at its next `check` that it is stopped."""


def _about(attempt: Attempt) -> dict[str, Any]:
    claimed = attempt.claimed
    return {
        "task": claimed.id,
        "job": claimed.job_id or claimed.id,
        "name": claimed.type,
        "queue": claimed.queue,
        "attempt": claimed.attempt,
    }
