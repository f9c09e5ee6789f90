"""Run the tasks of a test inside the test: one after the other, in the order of the engine.

The engine is the real one, and so is the task executor; only the claiming and the clock differ from a worker.
Time passes by moving the clock to the moment when the next task falls due, so that an hour of retries and
schedules takes milliseconds. This is one of the four hosts of the runner (holdfast.worker.runner).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import telemetry
from holdfast.engine import leases, scratch
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import LeasedTask, Outcome
from holdfast.testing.application import AppUnderTest
from holdfast.worker.attempts import STOP_REASON_RELEASED, Attempt, RunningAttempts
from holdfast.worker.context_factory import ContextFactory
from holdfast.worker.files import TaskFiles
from holdfast.worker.lifespan import open_lifespan
from holdfast.worker.messages.consumers import ConsumerLoop
from holdfast.worker.outbox import Outbox
from holdfast.worker.registration import register_definitions
from holdfast.worker.task_executor import TaskExecutor
from holdfast.worker.thread_pool import TaskThreadPool

TEST_WORKER_NAME: Final = "test"
MAX_HEARTBEAT_INTERVAL_S: Final = 0.25
MAX_DRAIN_THREADS: Final = 8
STOPPED_OUTCOME_NAME: Final = "stopped"
_OUTCOME_NAME_BY_KIND: Final = {
    "succeed": "succeeded",
    "fail": "failed",
    "reject": "rejected",
    "crash": "crashed",
    "snooze": "snoozed",
    "limited": "limited",
    "cancel": "cancelled",
    "release": "released",
}


@dataclass(frozen=True)
class AttemptResult:
    """The outcome of one attempt that `drain` ran.

    `outcome` is "succeeded", "failed", "rejected", "snoozed", "limited", "cancelled", "released" or "stopped"
    (its job was cancelled). `output` is what the task returned, as JSON. `exception` is what it raised.
    """

    task: str
    job_id: UUID
    attempt: int
    outcome: str
    output: Any = None
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ConsumedMessage:
    """The outcome of one message that `drain` passed to a consumer."""

    queue: str
    message: int
    outcome: str
    error: str | None = None


@dataclass
class DrainResult:
    """The attempts and messages that `drain` ran, in order.

    `clock_advance` is how far `drain` moved the clock.
    """

    attempts: list[AttemptResult] = field(default_factory=list[AttemptResult])
    messages: list[ConsumedMessage] = field(default_factory=list[ConsumedMessage])
    clock_advance: timedelta = timedelta(0)

    def of(self, task: Any) -> list[AttemptResult]:
        """Return the attempts of one task."""
        name = task if isinstance(task, str) else task.name
        return [attempt for attempt in self.attempts if attempt.task == name]

    @property
    def failed(self) -> list[AttemptResult]:
        """The attempts that failed, were rejected or crashed."""
        return [attempt for attempt in self.attempts if attempt.outcome in {"failed", "rejected", "crashed"}]


class DrainHost:
    """Claims tasks, runs them and records their outcomes like a worker, one at a time."""

    def __init__(self, application: AppUnderTest, database: Database, connection: Connection) -> None:
        self.application = application
        self.database = database
        self.connection = connection
        self._queues = sorted({task.queue for task in application.tasks.values()})
        self._cursors: str | None = None
        self._threads = TaskThreadPool(MAX_DRAIN_THREADS)
        self._attempt_ended = asyncio.Event()
        self._running = RunningAttempts(self._attempt_ended.set)
        self._outbox = Outbox()
        self._consumers = [
            ConsumerLoop(database, consumer, lambda: False) for consumer in application.consumers.values()
        ]
        self.next_due_s: float | None = None

    async def register_definitions(self) -> None:
        """Store task types and schedules, as a worker does when it starts."""
        application = self.application
        await register_definitions(
            self.connection, TEST_WORKER_NAME, application.tasks.values(), application.schedules.values()
        )

    async def record_and_claim(
        self, outcome: Outcome | None = None, *, claim: bool = True
    ) -> tuple[LeasedTask | None, bool]:
        """Record an outcome and claim a task. Return the task, and whether the outcome was accepted."""
        claimed, accepted = await self._record_and_claim(outcome, claim=claim)
        if claim and claimed is None and await self._add_queues_of_calls():
            claimed, _ = await self._record_and_claim(None, claim=True)
        return claimed, accepted

    async def _add_queues_of_calls(self) -> bool:
        """Add queues that single calls chose with `.options(queue=...)`. Return whether there were any."""
        queues = await scratch.list_queues_of_types(self.connection, list(self.application.tasks))
        if set(queues) <= set(self._queues):
            return False
        self._queues, self._cursors = sorted({*self._queues, *queues}), None
        return True

    async def _record_and_claim(
        self, outcome: Outcome | None, *, claim: bool
    ) -> tuple[LeasedTask | None, bool]:
        response = await leases.finish_and_claim(
            self.connection,
            worker=TEST_WORKER_NAME,
            outcomes=[] if outcome is None else [outcome],
            slots=1 if claim else 0,
            queues=self._queues,
            types=sorted(self.application.tasks),
            cursors=self._cursors,
        )
        self._cursors = response.cursors
        if claim:
            self.next_due_s = response.next_s
        return response.tasks[0] if response.tasks else None, "stale" not in response.answers

    @asynccontextmanager
    async def open_executor(self, state: Any = None) -> AsyncGenerator[TaskExecutor]:
        """Open the application's lifespan and yield an executor for its tasks."""
        tasks = self.application.tasks
        async with open_lifespan(self.application.lifespan, tasks.values(), state=state) as opened:
            contexts = ContextFactory(self.database, state=opened, files=TaskFiles(self.database))
            executor = TaskExecutor(tasks, self._running, self._outbox, self._threads, None, contexts)
            contexts.start()
            try:
                yield executor
            finally:
                executor.close()
                await contexts.stop()

    async def run_attempt(
        self, claimed: LeasedTask, executor: TaskExecutor
    ) -> tuple[AttemptResult, Outcome | None]:
        """Run one claimed task. The outcome is None if its job was cancelled or its lease is lost."""
        exceptions: list[BaseException] = []

        def collect_exception(_: str, fields: dict[str, Any]) -> None:
            exceptions.append(fields["exception"])

        unsubscribe = telemetry.subscribe(collect_exception, only=["task.raised"])
        try:
            executor.start_attempts([claimed], time.monotonic())
            (attempt,) = self._running.list_attempts()
            await self._wait_for_end(attempt)
        finally:
            unsubscribe()
        outcomes = self._outbox.take_unsent_outcomes()
        self._outbox.confirm_outcomes(outcomes)
        outcome = outcomes[0] if outcomes else None
        return _build_attempt_result(claimed, outcome, exceptions), outcome

    async def _wait_for_end(self, attempt: Attempt) -> None:
        """Wait until the attempt has an outcome.

        The code of an attempt that was given up may still run.
        """
        runner = attempt.runner
        if runner is None:
            return
        self._attempt_ended.clear()
        runner.add_done_callback(lambda _: self._attempt_ended.set())
        heartbeat = asyncio.create_task(self._send_heartbeats(attempt))
        try:
            await self._attempt_ended.wait()
        except asyncio.CancelledError:
            attempt.stop(STOP_REASON_RELEASED)
            raise
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
        if runner.done():
            runner.result()  # raises what ended the runner itself, such as a simulated kill

    async def _send_heartbeats(self, attempt: Attempt) -> None:
        """Renew the lease and send progress, and stop the attempt when its job is cancelled."""
        claimed, context = attempt.claimed, attempt.context
        while True:
            await asyncio.sleep(min(MAX_HEARTBEAT_INTERVAL_S, claimed.lease_s / 4))
            progress = context.get_unreported_progress() if context is not None else None
            news = {claimed.id: progress} if progress is not None else None
            beat = await leases.heartbeat_tasks(
                self.connection, worker=TEST_WORKER_NAME, held=[claimed], progress=news
            )
            if context is not None and progress is not None and claimed.lease not in beat.lost:
                context.mark_reported(progress)
            if claimed.lease in beat.cancelled:
                attempt.stop("cancelled")
            elif claimed.lease in beat.lost and not (context is not None and context.completed):
                attempt.stop("lease lost")

    async def is_cancelled(self, claimed: LeasedTask) -> bool:
        beat = await leases.heartbeat_tasks(self.connection, worker=TEST_WORKER_NAME, held=[claimed])
        return claimed.lease in beat.cancelled

    async def consume_messages(self) -> list[ConsumedMessage]:
        """Pass the messages that are visible now to their consumers."""
        consumed: list[ConsumedMessage] = []

        def collect_message(_: str, fields: dict[str, Any]) -> None:
            consumed.append(
                ConsumedMessage(fields["queue"], fields["message"], fields["outcome"], fields["error"])
            )

        unsubscribe = telemetry.subscribe(collect_message, only=["message.finished"])
        try:
            for consumer in self._consumers:
                await consumer.process_one_message()
        finally:
            unsubscribe()
        return consumed

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.stop()
        self._threads.close()


def _build_attempt_result(
    claimed: LeasedTask, outcome: Outcome | None, exceptions: list[BaseException]
) -> AttemptResult:
    has_output = outcome is not None and outcome.kind == "succeed" and outcome.body is not None
    return AttemptResult(
        task=claimed.type,
        job_id=claimed.job_id or claimed.id,
        attempt=claimed.attempt,
        outcome=STOPPED_OUTCOME_NAME if outcome is None else _OUTCOME_NAME_BY_KIND[outcome.kind],
        output=msgspec.json.decode(outcome.body) if has_output and outcome and outcome.body else None,
        exception=exceptions[-1] if exceptions else None,
    )


async def drain(host: DrainHost, *, until: timedelta, max_attempts: int, state: Any) -> DrainResult:
    """Run all tasks that are ready or become ready within `until`, moving the test clock forward."""
    result = DrainResult()
    async with host.open_executor(state) as executor:
        while True:
            await _run_ready_tasks(host, executor, result, max_attempts)
            messages = await host.consume_messages()
            result.messages += messages
            if len(result.messages) >= max_attempts:
                raise AssertionError(
                    f"More than {max_attempts} messages were consumed. The test may never end."
                )
            if messages:
                continue
            pause = timedelta(seconds=host.next_due_s) if host.next_due_s is not None else None
            if pause is None or result.clock_advance + pause > until:
                break
            await scratch.advance_database_clock(host.connection, pause)
            result.clock_advance += pause
    if result.clock_advance < until:
        await scratch.advance_database_clock(host.connection, until - result.clock_advance)
        result.clock_advance = until
    return result


async def _run_ready_tasks(
    host: DrainHost, executor: TaskExecutor, result: DrainResult, max_attempts: int
) -> None:
    claimed, _ = await host.record_and_claim()
    while claimed is not None:
        if len(result.attempts) >= max_attempts:
            raise AssertionError(
                f"More than {max_attempts} attempts ran, the last of {claimed.type}. The test may never end."
            )
        attempt, outcome = await host.run_attempt(claimed, executor)
        following, accepted = await host.record_and_claim(outcome)
        if not accepted:
            if not await host.is_cancelled(claimed):
                raise AssertionError(
                    f"The lease of {claimed.type} ended while it ran. Give the task a longer lease, "
                    "or do not move the clock while it runs."
                )
            attempt = AttemptResult(attempt.task, attempt.job_id, attempt.attempt, STOPPED_OUTCOME_NAME)
        result.attempts.append(attempt)
        claimed = following
