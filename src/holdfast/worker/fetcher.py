"""Decide when to ask the database for tasks, and for how many. Never runs user code.

One round trip carries the outcomes of finished tasks and returns tasks for the free slots. There is a reason
for a round trip when outcomes have waited long enough, when slots are free and there may be work (the last
response was full, a notification arrived, something falls due), or when it is time to poll. While there is
more work than slots, the fetcher fills half of the slots while the tasks in the other half run, and sends the
next request before it reads the last response, so that the database and this process work at the same time.
While tasks are short, it also claims some that wait for a slot (prefetch.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast import telemetry
from holdfast.engine import leases
from holdfast.engine.connection import Connection, Database, is_data_error
from holdfast.engine.leases import ClaimResponse, Lease, LeasedTask, Outcome, WorkerCommand
from holdfast.worker.attempts import RunningAttempts
from holdfast.worker.background import BackgroundService
from holdfast.worker.lost_claims import LostClaims
from holdfast.worker.outbox import Outbox
from holdfast.worker.outcome_isolation import OutcomeIsolator
from holdfast.worker.poll_schedule import PollSchedule
from holdfast.worker.prefetch import PrefetchPlanner
from holdfast.worker.queue_shares import QueueSelector
from holdfast.worker.wakeups import Wakeup, parse_wakeup

MAX_CLAIM_BATCH = 500
BACKUP_DELAY_S = 0.05  # in which the worker that a notification names should have asked
MIN_CONCURRENCY_TO_SPLIT = 50  # from here on, one half of the slots is filled while the other half runs
MAX_CONSECUTIVE_ROUND_TRIPS = 50  # before others may use the connection: it may be the only one


class TaskSink(Protocol):
    """Receives claimed tasks. `hold_leases` is called before `start_attempts`, also without tasks.

    The leases may have begun at `sent_at`, when the request was sent.
    """

    def hold_leases(self, tasks: Sequence[LeasedTask], ended: Sequence[Lease], sent_at: float) -> None: ...
    def start_attempts(self, tasks: Sequence[LeasedTask], sent_at: float) -> None: ...


class HeartbeatAnswers(Protocol):
    """Whether the heartbeat process answers (heartbeat_link.py). Nobody renews leases while it does not."""

    @property
    def is_unresponsive(self) -> bool: ...
    def ping_if_answer_is_old(self) -> None: ...
    async def wait_for_answer(self) -> bool: ...


class HeartbeatSilentError(Exception):
    """Tasks were claimed, and the heartbeat process does not answer. Nobody would renew their leases."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A claim request and its response, which may not have arrived yet."""

    queues: list[str]
    slots: int
    outcomes: list[Outcome]
    nonce: int
    sent_at: float
    response: asyncio.Task[leases.UndecodedClaimResponse]


class TaskFetcher(BackgroundService):
    def __init__(
        self,
        database: Database,
        worker: str,
        queue_selector: QueueSelector,
        task_types: Sequence[str],
        concurrency: int,
        outbox: Outbox,
    ) -> None:
        super().__init__()
        self._database = database
        self._worker = worker
        self.queue_selector = queue_selector
        self._task_types = list(task_types)
        self._concurrency = concurrency
        self._prefetch = PrefetchPlanner(concurrency)
        self._set_capacity(concurrency)
        self._outbox = outbox
        self._isolator = OutcomeIsolator(database, worker, outbox, self._end_leases)
        by_queue = None if queue_selector.plain else queue_selector.running_by_queue
        self.running = RunningAttempts(self._handle_freed_slot, by_queue)
        self.sink: TaskSink | None = None
        self.heartbeat_link: HeartbeatAnswers | None = None
        self.claiming = True
        self.remaining_claims: int | None = None  # tasks that may still be claimed; None: no limit
        self.listener_works: Callable[[], bool] = lambda: False
        self.measure_work: Callable[[], tuple[int, float]] = lambda: (0, 0.0)  # task_executor.py
        self.on_command: Callable[[WorkerCommand], None] = lambda _: None
        self.on_cancel: Callable[[], None] = lambda: None
        self.on_maintenance: Callable[[], None] = lambda: None
        self.on_idle: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()
        self._next_poll_at = 0.0
        self._poll_schedule = PollSchedule()
        self._next_due_s: float | None = None
        self._cursors: str | None = None
        self._round_trips: list[RoundTrip] = []  # whose responses are not read yet: one, or two for a moment
        self._lost_claims = LostClaims(worker)

    def _set_capacity(self, capacity: int) -> None:
        """Set how many tasks may run and wait in this worker, and the sizes of claims that follow from it."""
        splits = capacity >= MIN_CONCURRENCY_TO_SPLIT
        self._capacity = capacity
        self._max_batch = min(capacity // 2 if splits else capacity, MAX_CLAIM_BATCH)
        self._min_batch = max(1, self._max_batch // 2 if splits else capacity // 2)

    @property
    def requested_slots(self) -> int:
        """The number of slots in claim requests whose responses have not arrived.

        Tasks for these slots may be on their way.
        """
        return sum(trip.slots for trip in self._round_trips)

    def wake_up(self) -> None:
        """Wake the fetcher, because there may be an outcome to send or a slot to fill."""
        self._changed.set()

    def poll_now(self) -> None:
        """Poll for tasks at once, because there may be work."""
        self._poll_within(0.0)

    def _poll_within(self, seconds: float) -> None:
        self._next_poll_at = min(self._next_poll_at, time.monotonic() + seconds) if seconds else 0.0
        self.queue_selector.include_all_queues()
        self._changed.set()

    def handle_notification(self, payload: str) -> None:
        """Handle the payload of a notification.

        It is a wakeup, "cancel", "maintenance", or "" when notifications may have been missed.
        """
        if payload == "cancel":
            self.on_cancel()
        elif payload == "maintenance":
            self.on_maintenance()
        else:
            self._handle_wakeup(parse_wakeup(payload))
        if not payload:
            self.on_maintenance()

    def _handle_wakeup(self, wakeup: Wakeup | None) -> None:
        if wakeup is not None and not wakeup.is_for(self._worker, self.queue_selector.queues):
            return
        if wakeup is not None and wakeup.worker == self._worker:
            # For a moment nobody else is notified. So this worker polls several times before it sleeps again.
            self._poll_schedule.restart()
        self._poll_within(BACKUP_DELAY_S if wakeup is not None and wakeup.backup else 0.0)

    def _handle_freed_slot(self) -> None:
        if self.queue_selector.held_back:
            self.poll_now()
        else:
            self._changed.set()

    async def run_round(self) -> None:
        has_reason = await self._wait_until_round_trip_due()
        try:
            await self._finish_and_claim(makes_round_trips=has_reason)
        except Exception as error:
            if not (self._outbox.unsent_count and (is_data_error(error) or isinstance(error, UnicodeError))):
                raise
            await self._isolator.send_outcomes_apart()

    async def _finish_and_claim(self, *, makes_round_trips: bool) -> None:
        async with self._database.connection() as connection:
            try:
                if len(self._lost_claims) and await self._lost_claims.release_due_tasks(connection):
                    self.poll_now()  # the released tasks are ready
                if makes_round_trips:
                    await self._make_round_trips(connection)
            except HeartbeatSilentError:
                await self._abandon_round_trips()
            except BaseException:
                await self._abandon_round_trips()
                raise

    async def release_unreceived_tasks(self, connection: Connection) -> None:
        """Release tasks that were claimed for this worker in responses that never arrived."""
        await self._lost_claims.release_all_tasks(connection)

    async def _make_round_trips(self, connection: Connection) -> None:
        """Send outcomes and claim tasks, and repeat while responses are full.

        While responses are full, the next request is sent before a response is read.
        """
        trip = self._send_claim_request(connection)
        for remaining in reversed(range(MAX_CONSECUTIVE_ROUND_TRIPS)):
            unread = await trip.response
            seconds = time.monotonic() - trip.sent_at
            if unread.task_count:
                await self._require_heartbeat(unread.longest_lease_s)
            self._cursors = unread.cursors
            continues = remaining and self._should_send_next_request(trip, unread.task_count)
            following = self._send_claim_request(connection) if continues else None
            try:
                if following is not None:
                    await asyncio.sleep(0)  # lets the request leave this process
            finally:  # start what was claimed, whatever happens
                self._handle_claim_response(trip, unread.read(), seconds)
            if following is None:
                return
            trip = following

    async def _require_heartbeat(self, longest_lease_s: float) -> None:
        """Raise HeartbeatSilentError if nobody would renew the leases of claimed tasks."""
        self._lost_claims.longest_lease_s = max(self._lost_claims.longest_lease_s, longest_lease_s)
        if self.heartbeat_link is not None and not await self.heartbeat_link.wait_for_answer():
            raise HeartbeatSilentError

    def _should_send_next_request(self, trip: RoundTrip, received: int) -> bool:
        full = received >= trip.slots > 0
        return (
            full
            and self.remaining_claims is None
            and self.queue_selector.plain
            and self._count_free_slots() >= self._min_batch
        )

    def _send_claim_request(self, connection: Connection) -> RoundTrip:
        queues, slots = self.queue_selector.select_queues(self._count_free_slots())
        outcomes = self._outbox.take_unsent_outcomes()
        nonce = leases.create_nonce()
        if slots and self.heartbeat_link is not None:
            self.heartbeat_link.ping_if_answer_is_old()  # the answer arrives before the response
        request = leases.finish_and_claim_undecoded(
            connection,
            worker=self._worker,
            outcomes=outcomes,
            slots=slots,
            queues=queues,
            types=self._task_types,
            cursors=self._cursors,
            nonce=nonce,
        )
        trip = RoundTrip(queues, slots, outcomes, nonce, time.monotonic(), asyncio.create_task(request))
        self._round_trips.append(trip)
        return trip

    def _handle_claim_response(self, trip: RoundTrip, response: ClaimResponse, seconds: float) -> None:
        # Nothing that could fail happens between a claim and the start of the claimed tasks.
        self._round_trips.remove(trip)
        ended = self._outbox.confirm_outcomes(trip.outcomes, response.answers)
        if self.remaining_claims is not None:
            self.remaining_claims -= len(response.tasks)
        if self.sink is not None:
            self.sink.hold_leases(response.tasks, ended, trip.sent_at)
            self.sink.start_attempts(response.tasks, trip.sent_at)
        self._emit_claim_event(trip.slots, len(trip.outcomes), len(response.tasks), seconds)
        if trip.slots:
            self._plan_prefetch(trip, len(response.tasks))
            self._plan_next_poll(
                trip.queues, received=len(response.tasks), requested=trip.slots, next_due_s=response.next_s
            )
        if response.command is not None:
            self.on_command(response.command)

    def _plan_prefetch(self, trip: RoundTrip, received: int) -> None:
        """Decide how many tasks to claim beyond the free slots."""
        if self.remaining_claims is None and self.queue_selector.plain:
            is_full = received >= trip.slots
            self._prefetch.record_claim(*self.measure_work(), is_full=is_full)
            self._set_capacity(self._concurrency + self._prefetch.extra_slots)

    def stop_prefetch(self) -> None:
        """Claim only for free slots until the rate was measured again."""
        self._prefetch.reset()
        self._set_capacity(self._concurrency)

    async def _abandon_round_trips(self) -> None:
        """Discard unread responses: send their outcomes again and release the tasks that they claimed."""
        trips, self._round_trips = self._round_trips, []
        for trip in reversed(trips):
            self._outbox.put_outcomes_back(trip.outcomes)
            if trip.slots:
                self._lost_claims.add_claim(trip.nonce, trip.sent_at)
        # The connection is returned to the pool only after no response is expected on it any more.
        pending = {trip.response for trip in trips}
        while pending:
            for response in pending:
                response.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # the caller that stops this task cancels again
                await asyncio.wait(pending)
            pending = {response for response in pending if not response.done()}
        for trip in trips:
            if not trip.response.cancelled():
                trip.response.exception()  # marks the exception as retrieved

    def _end_leases(self, ended: Sequence[Lease], sent_at: float) -> None:
        if self.sink is not None:
            self.sink.hold_leases((), ended, sent_at)

    def _emit_claim_event(self, requested: int, outcomes: int, received: int, seconds: float) -> None:
        if telemetry.has_subscribers("tasks.claimed"):
            telemetry.emit(
                "tasks.claimed",
                worker=self._worker,
                claimed=received,
                requested=requested,
                outcomes=outcomes,
                seconds=seconds,
            )

    def _count_free_slots(self) -> int:
        if not self.claiming or not self.queue_selector.has_queue_with_room:
            return 0
        if self.heartbeat_link is not None and self.heartbeat_link.is_unresponsive:
            return 0
        free = min(self._capacity - len(self.running) - self.requested_slots, self._max_batch)
        return max(0, free if self.remaining_claims is None else min(free, self.remaining_claims))

    def _plan_next_poll(
        self, queues: Sequence[str], *, received: int, requested: int, next_due_s: float | None
    ) -> None:
        """Set the time of the next poll, in case no notification arrives before."""
        if next_due_s is not None:
            self._next_due_s = next_due_s if self._next_due_s is None else min(next_due_s, self._next_due_s)
        self._poll_schedule.record_poll(received=received > 0)
        if not self.queue_selector.handle_claim_response(queues, full=received >= requested):
            self._next_poll_at = 0.0
            return
        pause_s = self._poll_schedule.get_pause_s(listens=self.listener_works())
        if self._next_due_s is not None:
            pause_s = min(pause_s, max(self._next_due_s, 0.001))
        self._next_poll_at = time.monotonic() + pause_s
        self._next_due_s = None
        if not received:
            self.on_idle()

    async def _wait_until_round_trip_due(self) -> bool:
        """Wait until there are outcomes to send or slots to fill.

        Return False if only the tasks of lost claims are to be released.
        """
        while True:
            pause_s = self._outbox.seconds_until_flush
            slots = self._count_free_slots()
            if slots:
                until_poll_s = self._next_poll_at - time.monotonic()
                if until_poll_s > 0:
                    pause_s = until_poll_s if pause_s is None else min(pause_s, until_poll_s)
                elif pause_s is None or slots >= self._min_batch:
                    return True
            if pause_s is not None and pause_s <= 0:
                return True
            until_release_s = self._lost_claims.seconds_until_release
            if until_release_s is not None:
                if until_release_s <= 0:
                    return False
                pause_s = until_release_s if pause_s is None else min(pause_s, until_release_s)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
