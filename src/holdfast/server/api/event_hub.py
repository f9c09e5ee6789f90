"""Deliver events of jobs and batches to any number of streams with two database connections.

One connection of the process listens for notifications. One connection of the pool at a time reads events, no
matter how many streams are open. A stream subscribes first and reads the job afterwards. The events that it
receives start before that point, and it drops those that it knows, so no event is lost in between.

Notifications only tell which jobs to read. Completeness comes from polling all watched jobs twice a second,
which also works behind a connection pooler. Polling slows down when it would take more than one twentieth
of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.engine import watches
from holdfast.engine.connection import Database
from holdfast.engine.listener import EVENT_CHANNEL, NotificationListener
from holdfast.errors import DatabaseUnavailableError, HoldfastError
from holdfast.model import ENDED_STATUSES
from holdfast.server.api.stream_sources import JobOrBatchReader, read_job_with_files
from holdfast.settings import Settings

EVENT_POLL_INTERVAL_S = 0.5
MIN_POLL_PAUSE_RATIO = 20  # the pause after a poll is at least this many times as long as the poll took
WATCH_RENEWAL_INTERVAL_S = 45.0
MAX_EVENTS_PER_JOB_READ = 500  # per job
MAX_PENDING_EVENTS_PER_STREAM = 1000  # a stream that falls further behind starts again with a snapshot
END_EVENT_KINDS = ("job", "batch")  # these events report the end of a job or batch
_log = logging.getLogger("holdfast.server.api")


@dataclass(frozen=True, slots=True)
class StoredStreamEvent:
    """A stored event of a job or batch, with its sequence number."""

    seq: int
    at: datetime
    kind: str
    body: dict[str, Any]


class EventSubscription:
    """A subscription to the events of one job. Close the subscription when you no longer need it.

    `overflowed` is True after events were dropped because the subscriber was too slow. `ended` is None until
    the job has ended, then the final state of the job.

    >>> from uuid import UUID
    >>> from starlette.requests import Request
    >>> from holdfast.server import subscribe_to_job_events
    >>> async def wait_for_change(request: Request, job_id: UUID, last_seq: int) -> bool:
    ...     subscription = subscribe_to_job_events(request, job_id, after=last_seq)
    ...     try:
    ...         return await subscription.wait_for_event(15)
    ...     finally:
    ...         subscription.close()
    """

    def __init__(self, unsubscribe: Callable[[EventSubscription], None]) -> None:
        self._unsubscribe = unsubscribe
        self._pending: deque[StoredStreamEvent] = deque()
        self._changed = asyncio.Event()
        self.overflowed = False
        self.ended: dict[str, Any] | None = None

    def push_event(self, event: StoredStreamEvent) -> None:
        """Add a pending event to the subscription. Only `EventHub` calls this method."""
        if len(self._pending) >= MAX_PENDING_EVENTS_PER_STREAM:
            self._pending.clear()
            self.overflowed = True
        self._pending.append(event)
        self._changed.set()

    def mark_ended(self, job: dict[str, Any]) -> None:
        """Record that the job has ended. Only `EventHub` calls this method."""
        self.ended = job
        self._changed.set()

    def take_events(self) -> list[StoredStreamEvent]:
        """Return the pending events and remove them from the subscription."""
        events = list(self._pending)
        self._pending.clear()
        self._changed.clear()
        return events

    async def wait_for_event(self, timeout_s: float) -> bool:
        """Wait until an event is pending or the job has ended. Return False after `timeout_s` seconds."""
        if self._pending or self.ended is not None:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout_s, 0)):
                await self._changed.wait()
        return bool(self._pending) or self.ended is not None

    def close(self) -> None:
        """End the subscription. A second call has no effect."""
        self._unsubscribe(self)


@dataclass
class WatchedJobOrBatch:
    """A job or batch that at least one event stream watches.

    `last_seq` is the number of the last delivered event, or None before delivery has started.
    """

    read: JobOrBatchReader
    last_seq: int | None = None
    subscriptions: set[EventSubscription] = field(default_factory=set[EventSubscription])
    ended: dict[str, Any] | None = None


class EventHub:
    """Reader that delivers the events of all watched jobs and batches to their subscriptions."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._name = f"api-{secrets.token_hex(8)}"
        self.open_streams: dict[str, int] = {}  # number of streams by caller
        self._watched: dict[UUID, WatchedJobOrBatch] = {}
        self._dirty: set[UUID] = set()
        self._wakeup = asyncio.Event()
        self._listener: NotificationListener | None = None
        self._loop: asyncio.Task[None] | None = None
        self._registered: frozenset[UUID] = frozenset()
        self._registered_at = 0.0

    @property
    def subscription_count(self) -> int:
        return sum(len(subject.subscriptions) for subject in self._watched.values())

    def subscribe(self, subject_id: UUID, read: JobOrBatchReader = read_job_with_files) -> EventSubscription:
        """Subscribe to the events of a job or batch. Events arrive after you call `start_delivery_after`."""
        subscription = EventSubscription(lambda ended: self._unsubscribe(subject_id, ended))
        self._watched.setdefault(subject_id, WatchedJobOrBatch(read)).subscriptions.add(subscription)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run_reader_loop(), name="event streams")
        self._wakeup.set()
        return subscription

    def start_delivery_after(self, subject_id: UUID, seq: int) -> None:
        """Start to deliver the events of a job or batch whose number is greater than `seq`."""
        subject = self._watched.get(subject_id)
        if subject is not None and subject.last_seq is None:
            subject.last_seq = seq
        self._mark_changed(subject_id)

    def _unsubscribe(self, subject_id: UUID, subscription: EventSubscription) -> None:
        subject = self._watched.get(subject_id)
        if subject is not None:
            subject.subscriptions.discard(subscription)
            if not subject.subscriptions:
                del self._watched[subject_id]
                self._dirty.discard(subject_id)

    async def wait_for_change(self, job_id: UUID, seq: int, timeout_s: float) -> bool:
        """Wait until the job has an event after number `seq` or has ended. Return False after the timeout."""
        subscription = self.subscribe(job_id)
        try:
            self.start_delivery_after(job_id, seq)
            return await subscription.wait_for_event(timeout_s)
        finally:
            subscription.close()

    async def stop_delivery(self) -> None:
        """Stop the delivery of events and close the listening connection."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            await asyncio.wait({loop})
        await self._stop_listening()

    def _mark_changed(self, subject_id: UUID) -> None:
        self._dirty.add(subject_id)
        self._wakeup.set()

    def _handle_event_notification(self, payload: str) -> None:
        if not payload:
            self._dirty.update(self._watched)
            self._wakeup.set()
            return
        with contextlib.suppress(ValueError):
            subject_id = UUID(payload)
            if subject_id in self._watched:
                self._mark_changed(subject_id)

    async def _run_reader_loop(self) -> None:
        # Nothing is awaited between the last check of `_watched` and the return. A subscription therefore
        # either is seen here or starts a new loop.
        while self._watched:
            await self._read_events_until_idle()

    async def _read_events_until_idle(self) -> None:
        """Read and deliver events until no stream is open. A database error only delays the streams."""
        channels = {EVENT_CHANNEL: self._handle_event_notification}
        self._listener = NotificationListener(self._database.url, self._settings, channels)
        self._listener.start()
        polled_at, pause_s = 0.0, EVENT_POLL_INTERVAL_S
        try:
            while self._watched:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wakeup.wait()
                self._wakeup.clear()
                try:
                    started_at = time.monotonic()
                    async with self._database.connection() as connection:
                        await self._register_watched_ids(connection)
                        if started_at - polled_at >= pause_s:
                            await self._poll_event_positions(connection)
                            polled_at = time.monotonic()
                            pause_s = max(
                                EVENT_POLL_INTERVAL_S, MIN_POLL_PAUSE_RATIO * (polled_at - started_at)
                            )
                        await self._deliver_events(connection)
                except DatabaseUnavailableError:  # reported once for the process (engine.availability)
                    await self._pause_after_error(pause_s)
                except HoldfastError as error:
                    _log.warning("event streams: %s", error)
                    await self._pause_after_error(pause_s)
                except Exception:
                    _log.exception("event streams: unexpected error")
                    await self._pause_after_error(pause_s)
        finally:
            await self._stop_listening()

    async def _pause_after_error(self, pause_s: float) -> None:
        self._dirty.update(self._watched)
        await asyncio.sleep(pause_s)

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    async def _register_watched_ids(self, connection: Any) -> None:
        """Register the watched jobs and batches in the database, if they changed or after 45 seconds."""
        now, watched = time.monotonic(), frozenset(self._watched)
        if watched != self._registered or now - self._registered_at > WATCH_RENEWAL_INTERVAL_S:
            await watches.watch_jobs(connection, self._name, sorted(watched))
            self._registered, self._registered_at = watched, now

    async def _poll_event_positions(self, connection: Any) -> None:
        unfinished = [subject_id for subject_id, subject in self._watched.items() if subject.ended is None]
        for state in await watches.get_last_event_numbers(connection, unfinished):
            subject = self._watched.get(state.id)
            if subject is None or subject.last_seq is None:
                continue
            if state.seq > subject.last_seq:
                self._dirty.add(state.id)
            elif state.status in ENDED_STATUSES:
                await self._deliver_job_end(connection, state.id)

    async def _deliver_events(self, connection: Any) -> None:
        """Read the new events of all changed jobs and batches in one query, and deliver them."""
        dirty, self._dirty = self._dirty, set()
        after = {
            subject_id: subject.last_seq
            for subject_id in dirty
            if (subject := self._watched.get(subject_id)) is not None and subject.last_seq is not None
        }
        if not after:
            return
        rows = await watches.list_watched_events(
            connection, list(after), list(after.values()), MAX_EVENTS_PER_JOB_READ
        )
        counts: dict[UUID, int] = {}
        ended: set[UUID] = set()
        for subject_id, seq, at, kind, body in rows:
            counts[subject_id] = counts.get(subject_id, 0) + 1
            subject = self._watched.get(subject_id)
            if subject is None or subject.last_seq is None or seq <= subject.last_seq:
                continue
            subject.last_seq = seq
            for subscription in subject.subscriptions:
                subscription.push_event(StoredStreamEvent(seq, at, kind, body))
            if kind in END_EVENT_KINDS:
                (ended.add if body.get("status") in ENDED_STATUSES else ended.discard)(subject_id)
        for subject_id, count in counts.items():
            if count >= MAX_EVENTS_PER_JOB_READ:  # more events follow, and the end comes after them
                self._mark_changed(subject_id)
            elif subject_id in ended:
                await self._deliver_job_end(connection, subject_id)

    async def _deliver_job_end(self, connection: Any, subject_id: UUID) -> None:
        subject = self._watched.get(subject_id)
        value = None if subject is None else await subject.read(connection, subject_id)
        if subject is not None and value is not None and value["status"] in ENDED_STATUSES:
            subject.ended = value
            for subscription in subject.subscriptions:
                subscription.mark_ended(value)
