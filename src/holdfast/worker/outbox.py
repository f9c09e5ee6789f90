"""Outcomes that the database has not confirmed yet.

An outcome leaves the outbox only after the confirmation. The event `task.finished` is emitted then, so that
an outcome that the database refuses is never reported as a success.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from holdfast import telemetry
from holdfast.engine.leases import Lease, Outcome, OutcomeAnswer

MAX_OUTCOME_FLUSH_DELAY_S: Final = 0.005
MIN_OUTCOMES_TO_FLUSH: Final = 100
STALE_OUTCOME_REASON: Final = "the lease had ended: another worker got the task, or it was cancelled"


class Outbox:
    def __init__(self) -> None:
        self._unsent: deque[Outcome] = deque()
        self._in_flight_count = 0
        self._oldest_at = 0.0
        self._ended_without_outcome: list[Lease] = []
        # The fields of `task.finished` by task and attempt, if anybody has subscribed to it.
        self._finished_events: dict[tuple[UUID, int], dict[str, Any]] = {}

    def __len__(self) -> int:
        """The number of outcomes that the database has not confirmed, sent or not."""
        return len(self._unsent) + self._in_flight_count

    @property
    def unsent_count(self) -> int:
        return len(self._unsent)

    def put_outcome(self, outcome: Outcome, finished_event: dict[str, Any] | None = None) -> None:
        """Add an outcome, and the fields of the event to emit when the database has confirmed it."""
        if not self._unsent:
            self._oldest_at = time.monotonic()
        self._unsent.append(outcome)
        if finished_event is not None:
            self._finished_events[outcome.id, outcome.attempt] = finished_event

    def add_ended_without_outcome(self, lease: Lease) -> None:
        """Record an attempt that ended without an outcome, so that its lease renewal ends."""
        self._ended_without_outcome.append(lease)

    def take_unsent_outcomes(self) -> list[Outcome]:
        """Remove and return all unsent outcomes. Confirm them or put them back later."""
        outcomes = list(self._unsent)
        self._unsent.clear()
        self._in_flight_count += len(outcomes)
        return outcomes

    def confirm_outcomes(
        self, outcomes: Sequence[Outcome], answers: Sequence[OutcomeAnswer] = ()
    ) -> list[Lease]:
        """Remove outcomes that the database has confirmed, and emit their events.

        Return the leases that end. Without `answers` all outcomes were accepted.
        """
        self._in_flight_count -= len(outcomes)
        if "stale" in answers:
            for outcome, answer in zip(outcomes, answers, strict=True):
                if answer != "ok":
                    self.emit_refused_event(outcome, STALE_OUTCOME_REASON)
        if self._finished_events:
            for outcome in outcomes:
                event = self._finished_events.pop((outcome.id, outcome.attempt), None)
                if event is not None:
                    telemetry.emit("task.finished", **event)
        ended, self._ended_without_outcome = self._ended_without_outcome, []
        return [*outcomes, *ended]

    def emit_refused_event(self, outcome: Outcome, reason: str) -> None:
        """Emit `outcome.refused` instead of `task.finished`."""
        self._finished_events.pop((outcome.id, outcome.attempt), None)
        telemetry.emit(
            "outcome.refused", task=outcome.id, attempt=outcome.attempt, outcome=outcome.kind, reason=reason
        )

    def put_outcomes_back(self, outcomes: list[Outcome]) -> None:
        """Put unconfirmed outcomes back, to send them again. The engine ignores repeated outcomes."""
        self._unsent.extendleft(reversed(outcomes))
        self._in_flight_count -= len(outcomes)

    @property
    def seconds_until_flush(self) -> float | None:
        """Seconds until the outcomes must be sent, or None if there are none."""
        if not self._unsent:
            return None
        if len(self._unsent) >= MIN_OUTCOMES_TO_FLUSH:
            return 0.0
        return max(0.0, self._oldest_at + MAX_OUTCOME_FLUSH_DELAY_S - time.monotonic())
