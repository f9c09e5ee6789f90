"""Outcomes that the database has not confirmed yet.

An outcome leaves the outbox only after the confirmation.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final
from uuid import UUID

from holdfast.engine.leases import Outcome

MAX_OUTCOME_FLUSH_DELAY_S: Final = 0.005
MIN_OUTCOMES_TO_FLUSH: Final = 100


class Outbox:
    def __init__(self) -> None:
        self._unsent: deque[Outcome] = deque()
        self._in_flight_count = 0
        self._oldest_at = 0.0
        self._ended_without_outcome: list[UUID] = []

    def __len__(self) -> int:
        """The number of outcomes that the database has not confirmed, sent or not."""
        return len(self._unsent) + self._in_flight_count

    @property
    def unsent_count(self) -> int:
        return len(self._unsent)

    def collect_ended_task_ids(self) -> set[UUID]:
        """Return the ids of ended tasks whose outcomes are unsent, or that have no outcome."""
        return {*self._ended_without_outcome, *(outcome.id for outcome in self._unsent)}

    def put_outcome(self, outcome: Outcome) -> None:
        if not self._unsent:
            self._oldest_at = time.monotonic()
        self._unsent.append(outcome)

    def add_ended_without_outcome(self, task: UUID) -> None:
        """Record a task that ended without an outcome, so that its lease renewal ends."""
        self._ended_without_outcome.append(task)

    def take_unsent_outcomes(self) -> list[Outcome]:
        """Remove and return all unsent outcomes. Confirm them or put them back later."""
        outcomes = list(self._unsent)
        self._unsent.clear()
        self._in_flight_count += len(outcomes)
        return outcomes

    def confirm_outcomes(self, outcomes: list[Outcome]) -> list[UUID]:
        """Remove outcomes that the database has confirmed. Return the ids of tasks whose leases end."""
        self._in_flight_count -= len(outcomes)
        ended, self._ended_without_outcome = self._ended_without_outcome, []
        return [outcome.id for outcome in outcomes] + ended

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
