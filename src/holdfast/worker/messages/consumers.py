"""Messages for consumers: when to read and for how many, and what became of those that were handled.

One loop per consumer. It reads only for slots that are free, so nothing waits invisible in this process. What
functions made of their messages is handed in with receipts, in groups: a message that somebody else has read
meanwhile is left alone. Before it sleeps, the loop says for how long (see queues_wake.sql) and reads once
more; then a notification wakes it, or the time at which the next message comes into sight, or the poll.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast import telemetry
from holdfast.definitions.consumers import Consumer
from holdfast.engine.connection import Connection, Database
from holdfast.engine.messages import consumers as consuming
from holdfast.engine.messages import queues
from holdfast.errors import NotFoundError
from holdfast.model import Message
from holdfast.worker.fetcher import BLIND_POLL, FALLING_ASLEEP, SAFETY_POLL
from holdfast.worker.messages.deliveries import Delivery, Ending, Keeper, Nobody
from holdfast.worker.messages.handling import call, handle, unfit
from holdfast.worker.messages.visibility import Visibility
from holdfast.worker.outbox import FLUSH_COUNT, FLUSH_SECONDS
from holdfast.worker.service import Service

LOCKED_PAUSE = 0.5  # something is visible and we did not get it: somebody has it locked
_log = logging.getLogger("holdfast.worker")
AnyConsumer = Consumer[Any]


class ConsumerLoop(Service):
    def __init__(
        self,
        database: Database,
        consumer: AnyConsumer,
        hears: Callable[[], bool],
        keeper: Keeper | None = None,
    ) -> None:
        super().__init__()
        self.consumer = consumer
        self._keeper = keeper or Nobody()
        self.reading = True
        self._database = database
        self._hears = hears
        self._threads = ThreadPoolExecutor(consumer.concurrency, thread_name_prefix=consumer.name)
        self._running: dict[str, Delivery] = {}
        self._endings: list[tuple[Delivery, Ending]] = []
        self._travelling = 0
        self._oldest = 0.0
        self._hooks: set[asyncio.Task[None]] = set()
        self._bell = asyncio.Event()
        self._look_at = 0.0
        self._looks = 0  # that did not fill the slots, since one did
        self._prepared = False
        self._woken = False  # whether inserts into the queue notify

    @property
    def busy(self) -> bool:
        return bool(self._running or self._endings or self._travelling or self._hooks)

    def deliveries(self) -> list[Delivery]:
        return list(self._running.values())

    def ring(self) -> None:
        self._bell.set()

    def wake(self) -> None:
        """There may be messages."""
        self._look_at = 0.0
        self._bell.set()

    async def stop(self) -> None:
        await super().stop()
        for hook in self._hooks:
            hook.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def prepare(self, connection: Connection) -> None:
        """Make sure of the queue, and of being woken when that is possible."""
        queue = self.consumer.queue
        if self.consumer.create and not await queues.has_queue(connection, queue):
            await queues.create(connection, queue)
        self._woken = await queues.enable_wakeups(connection, queue)
        self._prepared = True

    async def step(self) -> None:
        await self._reason()
        try:
            async with self._database.connection() as connection:
                if not self._prepared:
                    await self.prepare(connection)
                await self._hand_in(connection)
                slots = self._slots()
                if slots and time.monotonic() >= self._look_at:
                    await self._read(connection, slots)
        except NotFoundError:  # somebody dropped the queue; with create=True it is made again
            self._prepared = False
            raise

    async def once(self) -> int:
        """Without the loop: read a message, wait until it is handled, hand it in; how many there were."""
        async with self._database.connection() as connection:
            if not self._prepared:
                await self.prepare(connection)
            await self._read(connection, 1)
            found = len(self._running) + len(self._endings)
            while self._running:
                self._bell.clear()
                await self._bell.wait()
            await self._hand_in(connection)
        await asyncio.gather(*self._hooks)
        return found

    def _slots(self) -> int:
        return max(0, self.consumer.concurrency - len(self._running)) if self.reading else 0

    async def _reason(self) -> None:
        """Returns when a round trip is worth it."""
        while True:
            pause: float | None = None
            if self._endings:
                full = len(self._endings) >= FLUSH_COUNT
                pause = 0.0 if full else self._oldest + FLUSH_SECONDS - time.monotonic()
            elif self._slots():
                pause = self._look_at - time.monotonic()
            if pause is not None and pause <= 0:
                return
            self._bell.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._bell.wait()
            except TimeoutError:
                return

    async def _read(self, connection: Connection, slots: int) -> None:
        sleep = timedelta(seconds=self._nap() + 1) if self._looks and self._woken else None
        sent_at = time.monotonic()
        taken = await consuming.take(
            connection, self.consumer.queue, vt=self.consumer.vt, qty=slots, sleep=sleep
        )
        self._plan(got=len(taken.messages), wanted=slots, due_s=taken.due_s)
        limits = [limit for limit in (self.consumer.max_reads, taken.max_reads) if limit is not None]
        limit = min(limits, default=None)
        deliveries = [self._delivery(message, limit, sent_at) for message in taken.messages]
        fit = [delivery for delivery in deliveries if self._fits(delivery)]
        self._keeper.hold(fit)  # known before their functions start
        for delivery in fit:
            self._launch(delivery)

    def _nap(self) -> float:
        """How long to sleep after this look, if it finds nothing."""
        poll = SAFETY_POLL if self._woken and self._hears() else BLIND_POLL
        return min(poll, FALLING_ASLEEP[self._looks]) if self._looks < len(FALLING_ASLEEP) else poll

    def _plan(self, *, got: int, wanted: int, due_s: float | None) -> None:
        """When to look again without being told."""
        if got:
            self._looks = 0
        if got == wanted:
            self._look_at = 0.0
            return
        pause = self._nap() * random.uniform(0.8, 1.0)  # noqa: S311  (so that a fleet does not poll in step)
        if due_s is not None:
            pause = min(pause, due_s if due_s > 0 else LOCKED_PAUSE)
        self._looks += 1
        self._look_at = time.monotonic() + pause

    def _delivery(self, message: Message[Any], max_reads: int | None, sent_at: float) -> Delivery:
        assert message.receipt is not None  # noqa: S101  (a read always gives one)
        return Delivery(self.consumer, message, message.receipt, max_reads, sent_at, self._keeper)

    def _fits(self, delivery: Delivery) -> bool:
        problem = unfit(delivery)
        if problem is not None:
            self._put(delivery, Ending("bury", problem))
        return problem is None

    def _launch(self, delivery: Delivery) -> None:
        self._running[delivery.receipt] = delivery
        delivery.runner = asyncio.create_task(self._deliver(delivery), name=f"message {delivery.message.id}")
        delivery.runner.add_done_callback(lambda _: self._remove(delivery))

    def _remove(self, delivery: Delivery) -> None:
        self._running.pop(delivery.receipt, None)
        self.ring()

    async def _deliver(self, delivery: Delivery) -> None:
        message = delivery.message
        about = {
            "queue": message.queue,
            "message": message.id,
            "name": self.consumer.name,
            "reads": message.reads,
        }
        telemetry.emit("message.started", **about)
        began = time.monotonic()
        ending: Ending | None
        try:
            ending = await handle(delivery, self._threads)
        except asyncio.CancelledError:
            ending = self._released(delivery)
        if ending and delivery.finishing and ending.kind == self.consumer.finish:
            ending = None  # the user's transaction has decided
        telemetry.emit(
            "message.finished",
            **about,
            outcome=ending.kind if ending else "done" if delivery.finishing else "stopped",
            seconds=time.monotonic() - began,
            error=(ending and ending.error) or None,
        )
        delivery.ended = True
        if ending is None:
            self._keeper.drop([delivery])
            return
        if ending.kind in {"fail", "rest"}:
            await self._keeper.let_go(delivery)
        self._put(delivery, ending)

    def _released(self, delivery: Delivery) -> Ending | None:
        """Stopped with the worker: back at once. A thread that has the row locked goes on, and vt decides."""
        if delivery.stopped == "released" and (self.consumer.is_async or not delivery.finishing):
            return Ending("rest")
        return None

    def _put(self, delivery: Delivery, ending: Ending) -> None:
        if not self._endings:
            self._oldest = time.monotonic()
        self._endings.append((delivery, ending))
        self.ring()

    async def _hand_in(self, connection: Connection) -> None:
        """Tell the database what became of messages. Telling it twice does no harm, so what fails stays."""
        taken, self._endings = self._endings, []
        groups: dict[Ending, list[Delivery]] = {}
        for delivery, ending in taken:
            groups.setdefault(ending, []).append(delivery)
        self._travelling = len(taken)
        try:
            for ending in list(groups):
                await self._settle(connection, ending, groups[ending])
                del groups[ending]
        finally:
            left = [(delivery, ending) for ending, many in groups.items() for delivery in many]
            self._endings = left + self._endings
            self._travelling = 0

    async def _settle(self, connection: Connection, ending: Ending, deliveries: list[Delivery]) -> None:
        dead, ours = await _apply(connection, self.consumer.queue, ending, [d.receipt for d in deliveries])
        self._keeper.drop(deliveries)
        for delivery in deliveries:
            message = delivery.message
            if message.id in dead:
                telemetry.emit("message.dead", queue=message.queue, message=message.id, error=ending.error)
                self._tell_of_death(message, ending.error)
            elif message.id not in ours and not delivery.finishing:
                telemetry.emit("message.lost", queue=message.queue, message=message.id)

    def _tell_of_death(self, message: Message[Any], error: str) -> None:
        if self.consumer.on_dead is None:
            return
        hook = asyncio.create_task(
            self._call_on_dead(self.consumer.on_dead, replace(message, hold=None), error)
        )
        self._hooks.add(hook)
        hook.add_done_callback(self._hooks.discard)

    async def _call_on_dead(self, on_dead: Callable[..., object], message: Message[Any], error: str) -> None:
        try:
            await call(on_dead, message, error, threads=self._threads)
        except Exception:
            _log.exception("on_dead of %s failed for message %s", self.consumer.name, message.id)


async def _apply(
    connection: Connection, queue: str, ending: Ending, receipts: Sequence[str]
) -> tuple[set[int], set[int]]:
    """The ids that are dead now, and all that were still ours."""
    if ending.kind == "archive" or ending.kind == "delete":  # noqa: PLR1714  (narrows the type)
        return set(), await consuming.finish(connection, queue, ending.kind, receipts)
    if ending.kind == "rest":
        return set(), await consuming.rest(connection, queue, receipts, ending.delay)
    if ending.kind == "bury":
        dead = await consuming.bury(connection, queue, receipts, ending.error)
        return dead, dead
    outcomes = await consuming.fail(connection, queue, receipts, ending.error)
    return {number for number, outcome in outcomes.items() if outcome == "dead"}, set(outcomes)


class Consumers:
    """All loops of a worker, started, woken and stopped together."""

    def __init__(
        self, database: Database, consumers: Sequence[AnyConsumer], hears: Callable[[], bool]
    ) -> None:
        self._database = database
        self.visibility = Visibility(self.deliveries)
        self._loops = [ConsumerLoop(database, each, hears, self.visibility) for each in consumers]

    def __len__(self) -> int:
        return len(self._loops)

    async def prepare(self) -> None:
        """Fails, and the worker with it, when a queue is missing that nobody may make."""
        if self._loops:
            async with self._database.connection() as connection:
                for loop in self._loops:
                    await loop.prepare(connection)

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        for loop in self._loops:
            await loop.stop()

    @property
    def busy(self) -> bool:
        return any(loop.busy for loop in self._loops)

    def deliveries(self) -> list[Delivery]:
        return [delivery for loop in self._loops for delivery in loop.deliveries()]

    def heard(self, queue: str) -> None:
        for loop in self._loops:
            if queue in {"", loop.consumer.queue.lower()}:
                loop.wake()

    def stop_reading(self) -> None:
        for loop in self._loops:
            loop.reading = False

    def ring(self) -> None:
        for loop in self._loops:
            loop.ring()

    def release(self) -> None:
        """Stop what still runs; it becomes visible at once."""
        for delivery in self.deliveries():
            if delivery.stop("released") and delivery.runner is not None:
                delivery.runner.cancel("released")
