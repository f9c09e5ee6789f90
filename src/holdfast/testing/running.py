"""Runs the tasks of a test in the test: one after the other, in the order of the engine, on the test's loop.

The engine is the real one; only the worker around it is not. Time passes by moving the clock to the moment at
which the next thing falls due, so that an hour of retries and schedules takes a moment.
"""

from __future__ import annotations

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
from holdfast.engine.leases import Claimed, Outcome
from holdfast.testing.application import Application
from holdfast.worker.context import Context, current
from holdfast.worker.contexts import Contexts
from holdfast.worker.declared import declare
from holdfast.worker.executor import Verdict, execute
from holdfast.worker.files import Files
from holdfast.worker.lifespan import started
from holdfast.worker.messages.consumers import ConsumerLoop
from holdfast.worker.threads import Threads

WORKER: Final = "test"
_PAST: Final = {
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
class Ran:
    """One attempt. `problem` is the exception that it raised, if any."""

    task: str
    job_id: UUID
    attempt: int
    outcome: str
    output: Any = None
    problem: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Handled:
    """One message that a consumer was given."""

    queue: str
    message: int
    outcome: str
    error: str | None = None


@dataclass
class Drained:
    """What `drain` ran, in order, and how far the clock was moved."""

    ran: list[Ran] = field(default_factory=list[Ran])
    messages: list[Handled] = field(default_factory=list[Handled])
    moved: timedelta = timedelta(0)

    def of(self, task: Any) -> list[Ran]:
        name = task if isinstance(task, str) else task.name
        return [each for each in self.ran if each.task == name]

    @property
    def failed(self) -> list[Ran]:
        return [each for each in self.ran if each.outcome in {"failed", "rejected", "crashed"}]


class Runner:
    """Claims, runs and hands in, as a worker does, with one slot and without haste."""

    def __init__(self, application: Application, database: Database, connection: Connection) -> None:
        self.application = application
        self.database = database
        self.connection = connection
        self._queues = sorted({task.queue for task in application.tasks.values()})
        self._cursors: str | None = None
        self._threads = Threads(8)
        self._consumers = [
            ConsumerLoop(database, consumer, lambda: False) for consumer in application.consumers.values()
        ]
        self.next_s: float | None = None

    async def exchange(self, outcome: Outcome | None = None, *, claim: bool = True) -> Claimed | None:
        answer = await leases.exchange(
            self.connection,
            worker=WORKER,
            outcomes=[] if outcome is None else [outcome],
            slots=1 if claim else 0,
            queues=self._queues,
            types=sorted(self.application.tasks),
            cursors=self._cursors,
        )
        self._cursors = answer.cursors
        if claim:
            self.next_s = answer.next_s
        if "stale" in answer.answers:
            raise AssertionError(
                "The task ran for longer than its lease. Give it a longer one, or do not wait in the test."
            )
        return answer.tasks[0] if answer.tasks else None

    @asynccontextmanager
    async def contexts(self, state: Any = None) -> AsyncGenerator[Contexts]:
        """With what the application opens for its tasks."""
        tasks = self.application.tasks.values()
        async with started(self.application.lifespan, tasks, state=state) as opened:
            contexts = Contexts(self.database, state=opened, files=Files(self.database))
            contexts.start()
            try:
                yield contexts
            finally:
                await contexts.stop()

    async def attempt(self, claimed: Claimed, contexts: Contexts) -> tuple[Ran, Outcome]:
        context = contexts.make(claimed)
        problems: list[BaseException] = []
        with telemetry.subscribed(_listener(problems)):
            verdict = await self._execute(claimed, context)
        await contexts.ended(context)
        return _ran(claimed, verdict, problems), outcome_of(claimed, verdict)

    async def _execute(self, claimed: Claimed, context: Context) -> Verdict:
        token = current.set(context)
        try:
            task = self.application.tasks[claimed.type]
            return await execute(task, claimed.args, claimed.parents, context, self._threads)
        finally:
            current.reset(token)

    async def consume(self) -> list[Handled]:
        """Give consumers the messages that are visible now."""
        handled: list[Handled] = []

        def listen(name: str, fields: dict[str, Any]) -> None:
            if name == "message.finished":
                handled.append(
                    Handled(fields["queue"], fields["message"], fields["outcome"], fields["error"])
                )

        with telemetry.subscribed(listen):
            for consumer in self._consumers:
                await consumer.once()
        return handled

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.stop()
        self._threads.close()


def _listener(problems: list[BaseException]) -> telemetry.Subscriber:
    def listen(name: str, fields: dict[str, Any]) -> None:
        if name == "task.raised":
            problems.append(fields["problem"])

    return listen


def outcome_of(claimed: Claimed, verdict: Verdict) -> Outcome:
    return Outcome(
        id=claimed.id, attempt=claimed.attempt, nonce=claimed.nonce, kind=verdict.kind, body=verdict.body
    )


def _ran(claimed: Claimed, verdict: Verdict, problems: list[BaseException]) -> Ran:
    succeeded = verdict.kind == "succeed" and verdict.body is not None
    return Ran(
        task=claimed.type,
        job_id=claimed.job_id or claimed.id,
        attempt=claimed.attempt,
        outcome=_PAST[verdict.kind],
        output=msgspec.json.decode(verdict.body) if succeeded and verdict.body else None,
        problem=problems[-1] if problems else None,
    )


async def drain(runner: Runner, *, until: timedelta, most: int, state: Any) -> Drained:
    """Run what is ready, and what becomes ready within `until`, moving the clock from event to event."""
    drained = Drained()
    async with runner.contexts(state) as contexts:
        claimed = await runner.exchange()
        while True:
            while claimed is not None:
                if len(drained.ran) >= most:
                    raise AssertionError(
                        f"More than {most} attempts ran, the last of {claimed.type}. Is there an end to it?"
                    )
                ran, outcome = await runner.attempt(claimed, contexts)
                drained.ran.append(ran)
                claimed = await runner.exchange(outcome)
            handled = await runner.consume()
            drained.messages += handled
            if handled:
                if len(drained.messages) >= most:
                    raise AssertionError(f"More than {most} messages were handled. Is there an end to it?")
                claimed = await runner.exchange()
                continue
            pause = timedelta(seconds=runner.next_s) if runner.next_s is not None else None
            if pause is None or drained.moved + pause > until:
                break
            await scratch.move_clock(runner.connection, pause)
            drained.moved += pause
            claimed = await runner.exchange()
    if drained.moved < until:
        await scratch.move_clock(runner.connection, until - drained.moved)
        drained.moved = until
    return drained


async def declare_all(runner: Runner) -> None:
    """As a worker does when it starts."""
    application = runner.application
    await declare(runner.connection, WORKER, application.tasks.values(), application.schedules.values())
