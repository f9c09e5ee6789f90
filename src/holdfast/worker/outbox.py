"""Outcomes that the database has not confirmed yet.

An outcome leaves the outbox only after the confirmation.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final
from uuid import UUID

from holdfast.engine.leases import Outcome

MAX_FLUSH_DELAY_S: Final = 0.005
FLUSH_COUNT: Final = 100


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

    def task_ids(self) -> set[UUID]:
        """Return the tasks with unsent outcomes and those that ended without an outcome."""
        return {*self._ended_without_outcome, *(outcome.id for outcome in self._unsent)}

    def put(self, outcome: Outcome) -> None:
        if not self._unsent:
            self._oldest_at = time.monotonic()
        self._unsent.append(outcome)

    def add_without_outcome(self, task: UUID) -> None:
        """Record an attempt that ended with nothing to send. Only its lease renewal has to end."""
        self._ended_without_outcome.append(task)

    def take(self) -> list[Outcome]:
        """Take all unsent outcomes to send them. Call `confirm` or `put_back` with them later."""
        outcomes = list(self._unsent)
        self._unsent.clear()
        self._in_flight_count += len(outcomes)
        return outcomes

    def confirm(self, outcomes: list[Outcome]) -> list[UUID]:
        """Drop outcomes that the database has answered. Returns the tasks whose leases end now."""
        self._in_flight_count -= len(outcomes)
        ended, self._ended_without_outcome = self._ended_without_outcome, []
        return [outcome.id for outcome in outcomes] + ended

    def put_back(self, outcomes: list[Outcome]) -> None:
        """Queue outcomes again that were not answered. A repetition is safe: the engine recognises it."""
        self._unsent.extendleft(reversed(outcomes))
        self._in_flight_count -= len(outcomes)

    @property
    def seconds_until_flush(self) -> float | None:
        """How long to wait for more outcomes before sending them; None when there is nothing to send."""
        if not self._unsent:
            return None
        if len(self._unsent) >= FLUSH_COUNT:
            return 0.0
        return max(0.0, self._oldest_at + MAX_FLUSH_DELAY_S - time.monotonic())
