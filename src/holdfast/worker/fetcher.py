"""When to ask the database, and for how many. Never runs user code.

One round trip carries the outcomes of what was finished and brings the tasks for the slots that are free.
There is a reason for one when outcomes have waited long enough, when slots are free and there may be work
(the last answer was full, a notification came, something falls due), or when it is time to look anyway. While
there is more work than slots, half of the slots are filled while the tasks in the other half run, and the
next question is sent before the last answer is read, so that the database and this process work at the same
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from holdfast import telemetry
from holdfast.engine import leases
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import Claimed, Command, Exchange, Outcome
from holdfast.worker.outbox import Outbox
from holdfast.worker.running import Running
from holdfast.worker.service import Service
from holdfast.worker.shares import Shares

SAFETY_POLL = 58.0  # with a listener that is proven to hear; together with its pings two statements a minute
BLIND_POLL = 1.5  # without one
MOST_AT_ONCE = 500
WORTH_HALVING = 50
IN_A_ROW = 50  # round trips, before others may have the connection: it may be the only one
LATENCY = 0.25  # seconds that a request may be on its way
# A task that commits while we fall asleep may find us awake and not notify, and be too late for the claim
# that found nothing. So we look again before the long sleep, later each time, as a commit can take its time.
# The first is for a claim that brought something: whoever is not full is not asleep yet, and is not notified.
FALLING_ASLEEP = (0.02, 0.01, 0.02, 0.04, 0.1, 1.0, 5.0)


class Taker(Protocol):
    """Who is given what was claimed: `hold` before `launch`, also with nothing.

    A lease may have begun as soon as it was asked for.
    """

    def hold(self, tasks: Sequence[Claimed], ended: Sequence[UUID], asked_at: float) -> None: ...
    def launch(self, tasks: Sequence[Claimed], asked_at: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Trip:
    """A question and its answer, which may not be there yet."""

    queues: list[str]
    slots: int
    outcomes: list[Outcome]
    at: float
    answer: asyncio.Task[leases.Unread]


class Fetcher(Service):
    def __init__(
        self,
        database: Database,
        worker: str,
        shares: Shares,
        types: Sequence[str],
        concurrency: int,
        outbox: Outbox,
    ) -> None:
        super().__init__()
        self._database = database
        self._worker = worker
        self.shares = shares
        self._types = list(types)
        self._concurrency = concurrency
        halves = concurrency >= WORTH_HALVING
        self._most = min(concurrency // 2 if halves else concurrency, MOST_AT_ONCE)
        self._enough = max(1, self._most // 2 if halves else concurrency // 2)
        self._outbox = outbox
        self.running = Running(self._freed, None if shares.plain else shares.running)
        self.taker: Taker | None = None
        self.claiming = True
        self.budget: int | None = None  # tasks that may still be claimed; None: any number
        self.hears: Callable[[], bool] = lambda: False
        self.on_command: Callable[[Command], None] = lambda _: None
        self.on_cancel: Callable[[], None] = lambda: None
        self.on_upkeep: Callable[[], None] = lambda: None
        self.on_nothing: Callable[[], None] = lambda: None
        self._bell = asyncio.Event()
        self._look_at = 0.0
        self._looks = 0  # in vain, since something was found
        self._next_s: float | None = None
        self._cursors: str | None = None
        self._trips: list[Trip] = []  # whose answers are not read yet: one, or two for a moment
        self._unsure_since: float | None = (
            None  # answers to claims were lost: we may hold what we do not know
        )

    @property
    def asked(self) -> int:
        """Slots for which tasks may be on their way."""
        return sum(trip.slots for trip in self._trips)

    def ring(self) -> None:
        """Something changed in this process: an outcome to send, or a slot to fill."""
        self._bell.set()

    def wake(self) -> None:
        """There may be work."""
        self._look_at = 0.0
        self.shares.refresh()
        self._bell.set()

    def heard(self, what: str) -> None:
        """A queue with work, a command for somebody, or that something was cancelled or is to be tended."""
        if what == "cancel":
            self.on_cancel()
        elif what == "upkeep":
            self.on_upkeep()
        else:
            self.wake()
        if not what:  # some words may have been missed
            self.on_upkeep()

    def _freed(self) -> None:
        if self.shares.held_back:
            self.wake()
        else:
            self._bell.set()

    async def step(self) -> None:
        await self._reason()
        async with self._database.connection() as connection:
            try:
                await self.give_back(connection)
                await self._travel(connection)
            except BaseException:
                await self._lose()
                raise

    async def give_back(self, connection: Connection) -> None:
        """What was claimed for us and never arrived."""
        if self._unsure_since is not None:
            held = {each.claimed.id for each in self.running.all()} | self._outbox.ids()
            within = timedelta(seconds=time.monotonic() - self._unsure_since + LATENCY)
            await leases.release_unheld(connection, self._worker, held, within)
            self._unsure_since = None

    async def _travel(self, connection: Connection) -> None:
        """One round trip; while answers are full, the next question is sent before an answer is read."""
        trip = self._depart(connection)
        for more in reversed(range(IN_A_ROW)):
            unread = await trip.answer
            seconds = time.monotonic() - trip.at
            self._cursors = unread.cursors
            following = self._depart(connection) if more and self._goes_on(trip, unread.got) else None
            try:
                if following is not None:
                    await asyncio.sleep(0)  # for it to be sent
            finally:  # what was claimed is started, whatever happens
                self._arrive(trip, unread.read(), seconds)
            if following is None:
                return
            trip = following

    def _goes_on(self, trip: Trip, got: int) -> bool:
        full = got >= trip.slots > 0
        return full and self.budget is None and self.shares.plain and self._slots() >= self._enough

    def _depart(self, connection: Connection) -> Trip:
        queues, slots = self.shares.ask(self._slots())
        outcomes = self._outbox.take()
        asking = leases.ask(
            connection,
            worker=self._worker,
            outcomes=outcomes,
            slots=slots,
            queues=queues,
            types=self._types,
            cursors=self._cursors,
        )
        trip = Trip(queues, slots, outcomes, time.monotonic(), asyncio.create_task(asking))
        self._trips.append(trip)
        return trip

    def _arrive(self, trip: Trip, answer: Exchange, seconds: float) -> None:
        # Nothing that could fail comes between a claim and the start of what it brought.
        self._trips.remove(trip)
        ended = self._outbox.answered(trip.outcomes)
        if self.budget is not None:
            self.budget -= len(answer.tasks)
        if self.taker is not None:
            self.taker.hold(answer.tasks, ended, trip.at)
            self.taker.launch(answer.tasks, trip.at)
        self._report_stale(trip.outcomes, answer)
        self._report_claim(trip.slots, len(trip.outcomes), len(answer.tasks), seconds)
        if trip.slots:
            self._plan(trip.queues, got=len(answer.tasks), wanted=trip.slots, next_s=answer.next_s)
        if answer.command is not None:
            self.on_command(answer.command)

    async def _lose(self) -> None:
        """No answer will be read: outcomes are sent again, and what was claimed is given back."""
        trips, self._trips = self._trips, []
        for trip in reversed(trips):
            self._outbox.put_back(trip.outcomes)
            if trip.slots:
                self._unsure_since = min(trip.at, self._unsure_since or trip.at)
        # Nobody else may have the connection while it waits for an answer.
        waiting = {trip.answer for trip in trips}
        while waiting:
            for answer in waiting:
                answer.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # whoever stops us says so again
                await asyncio.wait(waiting)
            waiting = {answer for answer in waiting if not answer.done()}
        for trip in trips:
            if not trip.answer.cancelled():
                trip.answer.exception()  # nobody else asks for it

    def _report_stale(self, outcomes: list[Outcome], answer: Exchange) -> None:
        if "stale" in answer.answers:
            for outcome, verdict in zip(outcomes, answer.answers, strict=True):
                if verdict != "ok":
                    telemetry.emit("task.lease_lost", task=outcome.id, attempt=outcome.attempt)

    def _report_claim(self, wanted: int, outcomes: int, got: int, seconds: float) -> None:
        if telemetry.heard("worker.claimed"):
            telemetry.emit(
                "worker.claimed",
                worker=self._worker,
                got=got,
                wanted=wanted,
                outcomes=outcomes,
                seconds=seconds,
            )

    def _slots(self) -> int:
        if not self.claiming or not self.shares.has_room:
            return 0
        free = min(self._concurrency - len(self.running) - self.asked, self._most)
        return max(0, free if self.budget is None else min(free, self.budget))

    def _plan(self, queues: Sequence[str], *, got: int, wanted: int, next_s: float | None) -> None:
        """When to look again for work without being told."""
        if next_s is not None:
            self._next_s = next_s if self._next_s is None else min(next_s, self._next_s)
        if got:
            self._looks = 0
        if not self.shares.answered(queues, full=got >= wanted):
            self._look_at = 0.0
            return
        poll = SAFETY_POLL if self.hears() else BLIND_POLL
        self._looks += not got
        if self._looks < len(FALLING_ASLEEP):
            poll = min(poll, FALLING_ASLEEP[self._looks])
        poll *= random.uniform(0.8, 1.0)  # noqa: S311  (so that a fleet does not poll in step)
        if self._next_s is not None:
            poll = min(poll, max(self._next_s, 0.001))
        self._look_at = time.monotonic() + poll
        self._next_s = None
        if not got:
            self.on_nothing()

    async def _reason(self) -> None:
        """Returns when a round trip is worth it."""
        while True:
            pause = self._outbox.pause
            slots = self._slots()
            if slots:
                until_look = self._look_at - time.monotonic()
                if until_look > 0:
                    pause = until_look if pause is None else min(pause, until_look)
                elif pause is None or slots >= self._enough:
                    return
            if pause is not None and pause <= 0:
                return
            self._bell.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._bell.wait()
