"""Consumer loops: decide when to read messages and how many, and store the outcomes.

There is one loop per consumer. It reads only as many messages as it has free slots, so no message waits
invisibly in this process. Outcomes are stored with receipts, in groups; a message that another reader has
read in the meantime is left alone. Before the loop sleeps, it registers itself as a sleeping reader and reads
once more (functions/messages). Then a notification wakes it, or the time at which the next message becomes
visible, or the poll.
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
from holdfast.worker.background import BackgroundService
from holdfast.worker.messages.deliveries import (
    Delivery,
    MessageOutcome,
    MessageVisibility,
    NoVisibilityRenewal,
)
from holdfast.worker.messages.runner import call_function, find_read_limit_error, run_consumer_function
from holdfast.worker.messages.visibility import VisibilityRenewalClient
from holdfast.worker.outbox import MAX_OUTCOME_FLUSH_DELAY_S, MIN_OUTCOMES_TO_FLUSH
from holdfast.worker.poll_schedule import (
    POLL_DELAYS_WHILE_BUSY_S,
    POLL_INTERVAL_WITH_LISTENER_S,
    POLL_INTERVAL_WITHOUT_LISTENER_S,
)

LOCKED_MESSAGE_PAUSE_S = 0.5  # a message is visible, and another transaction has locked it
_log = logging.getLogger("holdfast.worker")
AnyConsumer = Consumer[Any]


class ConsumerLoop(BackgroundService):
    def __init__(
        self,
        database: Database,
        consumer: AnyConsumer,
        listener_works: Callable[[], bool],
        visibility: MessageVisibility | None = None,
    ) -> None:
        super().__init__()
        self.consumer = consumer
        self._visibility = visibility or NoVisibilityRenewal()
        self.reading = True
        self._database = database
        self._listener_works = listener_works
        self._threads = ThreadPoolExecutor(consumer.concurrency, thread_name_prefix=consumer.name)
        self._running: dict[str, Delivery] = {}
        self._outcomes: list[tuple[Delivery, MessageOutcome]] = []
        self._outcomes_in_flight = 0
        self._oldest_outcome_at = 0.0
        self._dead_letter_callbacks: set[asyncio.Task[None]] = set()
        self._wakeup = asyncio.Event()
        self._next_read_at = 0.0
        self._empty_reads = 0  # consecutive reads that did not fill the slots
        self._prepared = False
        self._inserts_notify = False

    @property
    def is_busy(self) -> bool:
        return bool(
            self._running or self._outcomes or self._outcomes_in_flight or self._dead_letter_callbacks
        )

    def list_deliveries(self) -> list[Delivery]:
        return list(self._running.values())

    def wake_up(self) -> None:
        self._wakeup.set()

    def read_now(self) -> None:
        """Read messages at once, because there may be new messages."""
        self._next_read_at = 0.0
        self._wakeup.set()

    async def stop(self) -> None:
        await super().stop()
        for callback in self._dead_letter_callbacks:
            callback.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def prepare_queue(self, connection: Connection) -> None:
        """Create the queue if the consumer has create=True, and enable notifications of new messages."""
        queue = self.consumer.queue
        if self.consumer.create and not await queues.message_queue_exists(connection, queue):
            await queues.create_message_queue(connection, queue)
        self._inserts_notify = await queues.enable_message_wakeups(connection, queue)
        self._prepared = True

    async def run_round(self) -> None:
        await self._wait_for_work()
        try:
            async with self._database.connection() as connection:
                if not self._prepared:
                    await self.prepare_queue(connection)
                await self._store_outcomes(connection)
                slots = self._count_free_slots()
                if slots and time.monotonic() >= self._next_read_at:
                    await self._read_messages(connection, slots)
        except NotFoundError:  # the queue was dropped; create=True creates it again
            self._prepared = False
            raise

    async def process_one_message(self) -> int:
        """Read one message, process the message and store its outcome.

        Return the number of messages.
        """
        async with self._database.connection() as connection:
            if not self._prepared:
                await self.prepare_queue(connection)
            await self._read_messages(connection, 1)
            count = len(self._running) + len(self._outcomes)
            while self._running:
                self._wakeup.clear()
                await self._wakeup.wait()
            await self._store_outcomes(connection)
        await asyncio.gather(*self._dead_letter_callbacks)
        return count

    def _count_free_slots(self) -> int:
        return max(0, self.consumer.concurrency - len(self._running)) if self.reading else 0

    async def _wait_for_work(self) -> None:
        """Wait until there are outcomes to store or messages to read."""
        while True:
            pause: float | None = None
            if self._outcomes:
                full = len(self._outcomes) >= MIN_OUTCOMES_TO_FLUSH
                pause = (
                    0.0 if full else self._oldest_outcome_at + MAX_OUTCOME_FLUSH_DELAY_S - time.monotonic()
                )
            elif self._count_free_slots():
                pause = self._next_read_at - time.monotonic()
            if pause is not None and pause <= 0:
                return
            self._wakeup.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._wakeup.wait()
            except TimeoutError:
                return

    async def _read_messages(self, connection: Connection, slots: int) -> None:
        sleep = (
            timedelta(seconds=self._poll_interval_s() + 1)
            if self._empty_reads and self._inserts_notify
            else None
        )
        sent_at = time.monotonic()
        batch = await consuming.read_message_batch(
            connection, self.consumer.queue, vt=self.consumer.vt, qty=slots, sleep=sleep
        )
        self._schedule_next_read(received=len(batch.messages), requested=slots, due_s=batch.due_s)
        limits = [limit for limit in (self.consumer.max_reads, batch.max_reads) if limit is not None]
        limit = min(limits, default=None)
        deliveries = [self._create_delivery(message, limit, sent_at) for message in batch.messages]
        accepted = [delivery for delivery in deliveries if self._is_within_read_limit(delivery)]
        self._visibility.hold_messages(accepted)  # before their functions start
        for delivery in accepted:
            self._start_delivery(delivery)

    def _poll_interval_s(self) -> float:
        """Return the seconds until the next read after a read without messages."""
        listens = self._inserts_notify and self._listener_works()
        interval_s = POLL_INTERVAL_WITH_LISTENER_S if listens else POLL_INTERVAL_WITHOUT_LISTENER_S
        if self._empty_reads < len(POLL_DELAYS_WHILE_BUSY_S):
            interval_s = min(interval_s, POLL_DELAYS_WHILE_BUSY_S[self._empty_reads])
        return interval_s

    def _schedule_next_read(self, *, received: int, requested: int, due_s: float | None) -> None:
        """Set the time of the next read, in case no notification arrives before."""
        if received:
            self._empty_reads = 0
        if received == requested:
            self._next_read_at = 0.0
            return
        pause = self._poll_interval_s() * random.uniform(0.8, 1.0)  # noqa: S311  (so that a fleet does not poll in step)
        if due_s is not None:
            pause = min(pause, due_s if due_s > 0 else LOCKED_MESSAGE_PAUSE_S)
        self._empty_reads += 1
        self._next_read_at = time.monotonic() + pause

    def _create_delivery(self, message: Message[Any], max_reads: int | None, sent_at: float) -> Delivery:
        assert message.receipt is not None  # noqa: S101  (a read always returns one)
        return Delivery(self.consumer, message, message.receipt, max_reads, sent_at, self._visibility)

    def _is_within_read_limit(self, delivery: Delivery) -> bool:
        error = find_read_limit_error(delivery)
        if error is not None:
            self._add_outcome(delivery, MessageOutcome("dead_letter", error))
        return error is None

    def _start_delivery(self, delivery: Delivery) -> None:
        self._running[delivery.receipt] = delivery
        delivery.runner = asyncio.create_task(
            self._process_delivery(delivery), name=f"message {delivery.message.id}"
        )
        delivery.runner.add_done_callback(lambda _: self._remove_delivery(delivery))

    def _remove_delivery(self, delivery: Delivery) -> None:
        self._running.pop(delivery.receipt, None)
        self.wake_up()

    async def _process_delivery(self, delivery: Delivery) -> None:
        message = delivery.message
        fields = {
            "queue": message.queue,
            "message": message.id,
            "name": self.consumer.name,
            "reads": message.reads,
        }
        telemetry.emit("message.started", **fields)
        started_at = time.monotonic()
        outcome: MessageOutcome | None
        try:
            outcome = await run_consumer_function(delivery, self._threads)
        except asyncio.CancelledError:
            outcome = self._build_stop_outcome(delivery)
        if outcome and delivery.finishing and outcome.kind == self.consumer.finish:
            outcome = None  # the user's transaction finishes the message
        telemetry.emit(
            "message.finished",
            **fields,
            outcome=outcome.kind if outcome else "done" if delivery.finishing else "stopped",
            seconds=time.monotonic() - started_at,
            error=(outcome and outcome.error) or None,
        )
        delivery.ended = True
        if outcome is None:
            self._visibility.drop_messages([delivery])
            return
        if outcome.kind in {"fail", "delay"}:
            await self._visibility.drop_message_and_wait(delivery)
        self._add_outcome(delivery, outcome)

    def _build_stop_outcome(self, delivery: Delivery) -> MessageOutcome | None:
        """Build the outcome of a stopped delivery, or None if the visibility timeout decides.

        A thread that has locked the row goes on; then the visibility timeout decides.
        """
        if delivery.stop_reason == "released" and (self.consumer.is_async or not delivery.finishing):
            return MessageOutcome("delay")
        return None

    def _add_outcome(self, delivery: Delivery, outcome: MessageOutcome) -> None:
        if not self._outcomes:
            self._oldest_outcome_at = time.monotonic()
        self._outcomes.append((delivery, outcome))
        self.wake_up()

    async def _store_outcomes(self, connection: Connection) -> None:
        """Store the outcomes of processed messages. Outcomes stay in memory until a call succeeds.

        Storing an outcome twice does no harm.
        """
        outcomes, self._outcomes = self._outcomes, []
        groups: dict[MessageOutcome, list[Delivery]] = {}
        for delivery, outcome in outcomes:
            groups.setdefault(outcome, []).append(delivery)
        self._outcomes_in_flight = len(outcomes)
        try:
            for outcome in list(groups):
                await self._store_outcome_group(connection, outcome, groups[outcome])
                del groups[outcome]
        finally:
            unsent = [(delivery, outcome) for outcome, group in groups.items() for delivery in group]
            self._outcomes = unsent + self._outcomes
            self._outcomes_in_flight = 0

    async def _store_outcome_group(
        self, connection: Connection, outcome: MessageOutcome, deliveries: list[Delivery]
    ) -> None:
        receipts = [delivery.receipt for delivery in deliveries]
        dead, accepted = await _store_outcome(connection, self.consumer.queue, outcome, receipts)
        self._visibility.drop_messages(deliveries)
        for delivery in deliveries:
            message = delivery.message
            if message.id in dead:
                telemetry.emit(
                    "message.moved_to_dead_letters",
                    queue=message.queue,
                    message=message.id,
                    error=outcome.error,
                )
                self._start_dead_letter_callback(message, outcome.error)
            elif message.id not in accepted and not delivery.finishing:
                telemetry.emit("message.lease_lost", queue=message.queue, message=message.id)

    def _start_dead_letter_callback(self, message: Message[Any], error: str) -> None:
        if self.consumer.on_dead is None:
            return
        callback = asyncio.create_task(
            self._call_dead_letter_callback(self.consumer.on_dead, replace(message, lease=None), error)
        )
        self._dead_letter_callbacks.add(callback)
        callback.add_done_callback(self._dead_letter_callbacks.discard)

    async def _call_dead_letter_callback(
        self, on_dead: Callable[..., object], message: Message[Any], error: str
    ) -> None:
        try:
            await call_function(on_dead, message, error, threads=self._threads)
        except Exception:
            _log.exception("on_dead of %s failed for message %s", self.consumer.name, message.id)


async def _store_outcome(
    connection: Connection, queue: str, outcome: MessageOutcome, receipts: Sequence[str]
) -> tuple[set[int], set[int]]:
    """Store one outcome of several messages. Return the ids of dead letters, and all accepted ids."""
    if outcome.kind == "archive" or outcome.kind == "delete":  # noqa: PLR1714  (narrows the type)
        return set(), await consuming.finish_messages(connection, queue, outcome.kind, receipts)
    if outcome.kind == "delay":
        return set(), await consuming.hide_messages(connection, queue, receipts, outcome.delay)
    if outcome.kind == "dead_letter":
        dead = await consuming.move_to_dead_letters(connection, queue, receipts, outcome.error)
        return dead, dead
    statuses = await consuming.fail_messages(connection, queue, receipts, outcome.error)
    return {number for number, status in statuses.items() if status == "dead"}, set(statuses)


class ConsumerLoops:
    """All consumer loops of a worker, started, woken and stopped together."""

    def __init__(
        self, database: Database, consumers: Sequence[AnyConsumer], listener_works: Callable[[], bool]
    ) -> None:
        self._database = database
        self.visibility = VisibilityRenewalClient(self.list_deliveries)
        self._loops = [
            ConsumerLoop(database, consumer, listener_works, self.visibility) for consumer in consumers
        ]

    def __len__(self) -> int:
        return len(self._loops)

    async def prepare_queues(self) -> None:
        """Prepare the queues of all consumers. Raise NotFoundError if a queue does not exist.

        Consumers with create=True create their missing queues.
        """
        if self._loops:
            async with self._database.connection() as connection:
                for loop in self._loops:
                    await loop.prepare_queue(connection)

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        for loop in self._loops:
            await loop.stop()

    @property
    def is_busy(self) -> bool:
        return any(loop.is_busy for loop in self._loops)

    def list_deliveries(self) -> list[Delivery]:
        return [delivery for loop in self._loops for delivery in loop.list_deliveries()]

    def wake_queue(self, queue: str) -> None:
        """Wake the consumers of a queue, or all consumers if `queue` is ""."""
        for loop in self._loops:
            if queue in {"", loop.consumer.queue.lower()}:
                loop.read_now()

    def stop_reading(self) -> None:
        for loop in self._loops:
            loop.reading = False

    def wake_up(self) -> None:
        for loop in self._loops:
            loop.wake_up()

    def release_messages(self) -> None:
        """Stop all running deliveries, and make their messages visible at once."""
        for delivery in self.list_deliveries():
            if delivery.stop("released") and delivery.runner is not None:
                delivery.runner.cancel("released")
