"""Run claimed tasks: start each in the right host, enforce its time limit, put its outcome into the outbox.

Async functions run on the event loop and plain functions in threads. Tasks with `process=True` run in child
processes, and so do suspects: tasks that ran in a process that died. One timer serves all time limits. If an
attempt does not end within the overtime after its time limit, the executor gives it up: the attempt has
failed and its slot is free, even if its code still runs.

Attempts beyond the concurrency wait and start when another one ends. If they wait for too long they are
released, so that another worker runs them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

import msgspec

from holdfast import telemetry
from holdfast.engine.leases import LeasedTask, Outcome
from holdfast.tracing import TRACE_LABEL_NAME, Tracing
from holdfast.worker.attempts import STOP_REASON_RELEASED, STOP_REASON_TIME_LIMIT, Attempt, RunningAttempts
from holdfast.worker.context import current
from holdfast.worker.context_factory import ContextFactory
from holdfast.worker.heartbeat_protocol import PLACE_CHILD, PLACE_WORKER, PLACE_WORKER_ONLY
from holdfast.worker.outbox import Outbox
from holdfast.worker.outcomes import (
    AnyTask,
    TaskOutcome,
    build_exception_outcome,
    build_stop_outcome,
    create_secret_masker,
    emit_exception_event,
)
from holdfast.worker.runner import leave_thread_running, run_task
from holdfast.worker.thread_pool import TaskThreadPool

MAX_OVERTIME_S: Final = 2.0
MAX_WAIT_FOR_SLOT_S: Final = 0.25
WAIT_CHECK_INTERVAL_S: Final = 0.1


class ChildProcessHost(Protocol):
    """Runs tasks in child processes. `task_types` are the tasks that the child processes can run."""

    task_types: Collection[str]

    async def run_attempt(self, attempt: Attempt) -> TaskOutcome | None: ...


class TaskExecutor:
    def __init__(
        self,
        tasks: Mapping[str, AnyTask],
        running: RunningAttempts,
        outbox: Outbox,
        threads: TaskThreadPool,
        child_processes: ChildProcessHost | None,
        contexts: ContextFactory,
        concurrency: float = float("inf"),
    ) -> None:
        self._tasks = tasks
        self._running = running
        self._outbox = outbox
        self._threads = threads
        self._child_processes = child_processes
        self._contexts = contexts
        self._places = self._choose_places()
        self._context_for_every_task = contexts.every_task_needs_context
        self._tracing = contexts.tracing
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._concurrency = concurrency
        self._active_count = 0
        self._ran_count = 0
        self._busy_s = 0.0  # in which at least one task ran, up to `_busy_since`
        self._busy_since = 0.0
        self._waiting: deque[Attempt] = deque()
        self._wait_timer: asyncio.TimerHandle | None = None
        self.on_waited_too_long: Callable[[], None] = lambda: None
        self.started_count = 0
        self.ended_count = 0

    def _choose_places(self) -> dict[str, tuple[int, int]]:
        """Return by type where its tasks run: as long as they are no suspects, and as suspects."""
        child_types: Collection[str] = (
            () if self._child_processes is None else self._child_processes.task_types
        )
        places: dict[str, tuple[int, int]] = {}
        for name, task in self._tasks.items():
            if name not in child_types:
                places[name] = (PLACE_WORKER_ONLY, PLACE_WORKER_ONLY)
            else:
                places[name] = (PLACE_CHILD if task.process else PLACE_WORKER, PLACE_CHILD)
        return places

    def choose_place(self, claimed: LeasedTask) -> int:
        """Return where a task runs: tasks with `process=True` and suspects run in child processes."""
        return self._places[claimed.type][claimed.suspect]

    def start_attempts(self, tasks: Sequence[LeasedTask], claim_sent_at: float) -> None:
        """Start an attempt for each claimed task, or let it wait for a slot, and return without waiting."""
        now = time.monotonic()
        for claimed in tasks:
            task = self._tasks[claimed.type]
            place = self.choose_place(claimed)
            needs_context = task.takes_context or self._context_for_every_task or place == PLACE_CHILD
            context = self._contexts.create_context(claimed) if needs_context else None
            attempt = Attempt(claimed, task, context, started_at=now, renewed_at=claim_sent_at)
            attempt.place = place
            self._running.add_attempt(attempt)
            if self._active_count < self._concurrency:
                self._start_attempt(attempt, now)
            else:
                attempt.on_stop = partial(self._end_waiting_attempt, attempt)
                self._waiting.append(attempt)
        if self._waiting and self._wait_timer is None:
            self._check_waiting_later()

    def _start_attempt(self, attempt: Attempt, now: float) -> None:
        if not self._active_count:
            self._busy_since = now
        self._active_count += 1
        self.started_count += 1
        attempt.started_at = now
        if now + attempt.claimed.timeout_s < self._timer_at:
            self._set_time_limit_timer(now + attempt.claimed.timeout_s)
        attempt.runner = asyncio.get_running_loop().create_task(self._run_attempt(attempt))

    # Attempts that wait for a slot

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def _start_waiting_attempts(self) -> None:
        while self._waiting and self._active_count < self._concurrency:
            attempt = self._waiting.popleft()
            if not attempt.ended:
                attempt.on_stop = None
                self._start_attempt(attempt, time.monotonic())

    def _end_waiting_attempt(self, attempt: Attempt, _: str) -> None:
        """End an attempt that was stopped while it waited: cancelled, released, or its lease is lost."""
        self._end_attempt(attempt, build_stop_outcome(attempt))

    def release_waiting_attempts(self) -> None:
        """Give back the tasks that wait for a slot. Nothing is charged, because nothing of them has run."""
        while self._waiting:
            self._waiting.popleft().stop(STOP_REASON_RELEASED)

    def _check_waiting_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._wait_timer = loop.call_later(WAIT_CHECK_INTERVAL_S, self._check_waiting_attempts)

    def _check_waiting_attempts(self) -> None:
        """Give back all waiting tasks if the first one has waited for too long."""
        self._wait_timer = None
        if self._waiting and time.monotonic() > self._waiting[0].started_at + MAX_WAIT_FOR_SLOT_S:
            self.release_waiting_attempts()
            self.on_waited_too_long()
        if self._waiting:
            self._check_waiting_later()

    # Attempts that run

    async def _run_attempt(self, attempt: Attempt) -> None:
        context = attempt.context
        current.set(context)
        if telemetry.has_subscribers("task.started"):
            telemetry.emit("task.started", **_build_event_fields(attempt), **_build_owner_field(attempt))
        if attempt.claimed.schedule is not None:
            schedule = attempt.claimed.schedule
            telemetry.emit("schedule.attempt_started", schedule=schedule, **_build_event_fields(attempt))
        if self._tracing is not None:
            outcome = await self._run_in_span(attempt)
        elif attempt.isolated:
            outcome = await self._run_in_child_process(attempt)
        else:
            outcome = await run_task(attempt, self._threads)
        if context is not None and context.log_buffer:
            await self._contexts.write_log_lines(context)
        self._end_attempt(attempt, outcome)

    async def _run_in_span(self, attempt: Attempt) -> TaskOutcome | None:
        """Run the attempt inside a tracing span whose parent is the span of the submitter."""
        tracing, claimed = cast("Tracing", self._tracing), attempt.claimed
        with tracing.trace_attempt(_build_event_fields(attempt), claimed.trace) as span:
            # A child process creates its spans below this one.
            position = tracing.get_trace_labels().get(TRACE_LABEL_NAME)
            attempt.claimed = msgspec.structs.replace(claimed, trace=position)
            if attempt.isolated:
                outcome = await self._run_in_child_process(attempt)
            else:
                outcome = await run_task(attempt, self._threads)
            if outcome is not None and isinstance(outcome.exception, Exception):
                span.record_exception(outcome.exception, create_secret_masker(attempt))
            span.record_outcome(
                outcome.kind if outcome else "stopped", _redact_outcome_error(attempt, outcome)
            )
            return outcome

    async def _run_in_child_process(self, attempt: Attempt) -> TaskOutcome | None:
        try:
            return await cast("ChildProcessHost", self._child_processes).run_attempt(attempt)
        except asyncio.CancelledError as interruption:
            return build_stop_outcome(attempt, interruption)
        except Exception as error:
            return build_exception_outcome(attempt.task, error)

    def _end_attempt(self, attempt: Attempt, outcome: TaskOutcome | None) -> None:
        if attempt.ended:
            return
        attempt.ended = True
        self.ended_count += 1
        if attempt.runner is not None:
            self._count_end_of_run()
        claimed = attempt.claimed
        event = None
        if telemetry.has_subscribers("task.finished"):
            event = _build_finished_event(attempt, outcome)
        if outcome is None:
            self._outbox.add_ended_without_outcome(claimed)
            if event is not None:
                telemetry.emit("task.finished", **event)
        else:
            emit_exception_event(attempt, outcome)
            self._outbox.put_outcome(
                Outcome(
                    id=claimed.id,
                    attempt=claimed.attempt,
                    nonce=claimed.nonce,
                    kind=outcome.kind,
                    body=outcome.body,
                ),
                event,
            )
        self._running.remove_attempt(attempt)
        if self._waiting:
            self._start_waiting_attempts()

    def _count_end_of_run(self) -> None:
        self._active_count -= 1
        self._ran_count += 1
        if not self._active_count:
            self._busy_s += time.monotonic() - self._busy_since

    def measure_work(self) -> tuple[int, float]:
        """Return how many tasks have run, and the seconds in which at least one ran (prefetch.py)."""
        running_s = time.monotonic() - self._busy_since if self._active_count else 0.0
        return self._ran_count, self._busy_s + running_s

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._timer, self._wait_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._wait_timer = None

    # Time limits

    def _set_time_limit_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        pause = max(at - time.monotonic(), 0.001)
        self._timer = asyncio.get_running_loop().call_later(pause, self._enforce_time_limits)

    def _enforce_time_limits(self) -> None:
        now = time.monotonic()
        next_check_at = float("inf")
        for attempt in self._running.list_attempts():
            if attempt.is_waiting:
                continue
            deadline = attempt.time_limit_at
            if now >= deadline + MAX_OVERTIME_S:
                self._give_up_attempt(attempt)
                continue
            if now >= deadline:
                attempt.stop(STOP_REASON_TIME_LIMIT)
                deadline += MAX_OVERTIME_S
            next_check_at = min(next_check_at, deadline)
        self._timer, self._timer_at = None, float("inf")
        if next_check_at < float("inf"):
            self._set_time_limit_timer(next_check_at)

    def _give_up_attempt(self, attempt: Attempt) -> None:
        """End an attempt whose code did not stop in time, and ignore its later result."""
        attempt.mark_stopped(STOP_REASON_TIME_LIMIT)
        if attempt.on_stop is leave_thread_running:
            self._threads.allow_replacement_thread()
        if (
            attempt.stop_reason == STOP_REASON_RELEASED
        ):  # its code may still run, so no other worker may start it yet
            attempt.stop_reason = STOP_REASON_TIME_LIMIT
        outcome = None
        if attempt.stop_reason == STOP_REASON_TIME_LIMIT:
            outcome = build_stop_outcome(attempt, detail=" and did not stop")
        self._end_attempt(attempt, outcome)


def _build_event_fields(attempt: Attempt) -> dict[str, Any]:
    claimed = attempt.claimed
    return {
        "task": claimed.id,
        "job": claimed.job_id or claimed.id,
        "name": claimed.type,
        "queue": claimed.queue,
        "attempt": claimed.attempt,
    }


def _build_owner_field(attempt: Attempt) -> dict[str, str]:
    """Return the owner for events and logs. Spans do not have it: they often go to another company."""
    return {} if attempt.claimed.owner is None else {"owner": attempt.claimed.owner}


def _build_finished_event(attempt: Attempt, outcome: TaskOutcome | None) -> dict[str, Any]:
    schedule = attempt.claimed.schedule
    return {
        **_build_event_fields(attempt),
        **_build_owner_field(attempt),
        **({} if schedule is None else {"schedule": schedule}),
        "outcome": outcome.kind if outcome else "stopped",
        "seconds": time.monotonic() - attempt.started_at,
        "error": _redact_outcome_error(attempt, outcome),
    }


def _redact_outcome_error(attempt: Attempt, outcome: TaskOutcome | None) -> str | None:
    """Return the error of an outcome for logs and traces, without the secrets in the task's arguments."""
    if outcome is None or outcome.error is None:
        return None
    return create_secret_masker(attempt).mask_text(outcome.error)
