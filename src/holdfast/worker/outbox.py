"""Outcomes on their way to the database. One that was put in leaves only when the database has answered."""

from __future__ import annotations

import time
from collections import deque
from uuid import UUID

from holdfast.engine.leases import Outcome

FLUSH_SECONDS = 0.005
FLUSH_COUNT = 100


class Outbox:
    def __init__(self) -> None:
        self._waiting: deque[Outcome] = deque()
        self._travelling = 0
        self._oldest = 0.0
        self.over: list[UUID] = []
        """Attempts that ended without an outcome, because nobody wants it: only their leases are let go."""

    def __len__(self) -> int:
        """All that the database has not answered, on its way or not."""
        return len(self._waiting) + self._travelling

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ids(self) -> set[UUID]:
        """Of the tasks whose outcomes wait, and of those that ended without one."""
        return {*self.over, *(outcome.id for outcome in self._waiting)}

    def put(self, outcome: Outcome) -> None:
        if not self._waiting:
            self._oldest = time.monotonic()
        self._waiting.append(outcome)

    def forget(self, task: UUID) -> None:
        self.over.append(task)

    def take(self) -> list[Outcome]:
        taken = list(self._waiting)
        self._waiting.clear()
        self._travelling += len(taken)
        return taken

    def answered(self, outcomes: list[Outcome]) -> list[UUID]:
        """What was taken has arrived. Whose leases need no renewal any more."""
        self._travelling -= len(outcomes)
        over, self.over = self.over, []
        return [outcome.id for outcome in outcomes] + over

    def put_back(self, outcomes: list[Outcome]) -> None:
        """They were not answered. Sending them again is safe: the engine knows what it has accepted."""
        self._waiting.extendleft(reversed(outcomes))
        self._travelling -= len(outcomes)

    @property
    def pause(self) -> float | None:
        """Seconds to wait for company before flushing; None when there is nothing to flush."""
        if not self._waiting:
            return None
        if len(self._waiting) >= FLUSH_COUNT:
            return 0.0
        return max(0.0, self._oldest + FLUSH_SECONDS - time.monotonic())
