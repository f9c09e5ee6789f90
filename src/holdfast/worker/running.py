"""The tasks this worker holds leases of, shared by the fetcher, the attempts and the heartbeat's thread."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from uuid import UUID

from holdfast.definitions.tasks import Task
from holdfast.engine.leases import Claimed
from holdfast.worker.context import Context

# Stop this much before the lease ends by our own clock, so that the last write is still ours.
MARGIN = 0.15
TIME_LIMIT = "time limit"
RELEASED = "released"
UNRENEWED = "lease not renewed in time"
# A task that has stopped for these reasons is handed back: nobody is charged. If it was lost or cancelled
# there is nothing left to say.
HANDED_BACK = frozenset({RELEASED, UNRENEWED})


class Attempt:
    """One claimed task, from the claim to its verdict."""

    __slots__ = (
        "began",
        "claimed",
        "context",
        "ended",
        "isolated",
        "on_stop",
        "renewed_at",
        "runner",
        "started_at",
        "stopped",
        "task",
    )

    def __init__(
        self,
        claimed: Claimed,
        task: Task[..., object],
        context: Context | None,
        *,
        started_at: float,
        renewed_at: float,
    ) -> None:
        self.claimed = claimed
        self.task = task
        self.context = context
        self.started_at = started_at
        self.renewed_at = renewed_at
        self.runner: asyncio.Task[None] | None = None
        self.began = False
        self.ended = False
        self.isolated = False  # runs in a child process
        self.stopped: str | None = None
        self.on_stop: Callable[[str], None] | None = None  # instead of being cancelled: threads and children

    @property
    def must_stop_at(self) -> float:
        """When the lease may be over, counted from when the last good renewal was sent."""
        return self.renewed_at + self.claimed.lease_s * (1 - MARGIN)

    @property
    def deadline(self) -> float:
        return self.started_at + self.claimed.timeout_s

    def mark_stopped(self, reason: str) -> bool:
        """From any thread: plain code finds out at its next `check`. False: it was stopped before."""
        if self.stopped is not None or self.ended:
            return False
        self.stopped = reason
        if self.context is not None:
            self.context.stop(reason)
        return True

    def interrupt(self) -> None:
        """On the loop, after `mark_stopped`: what can be interrupted is."""
        if self.on_stop is not None:
            self.on_stop(self.stopped or "")
        elif self.began and self.runner is not None and not self.ended:
            self.runner.cancel(self.stopped)

    def stop(self, reason: str) -> None:
        """On the loop: ask it to stop."""
        if self.mark_stopped(reason):
            self.interrupt()


class Running:
    """A dictionary with a bell: `changed` is called when a slot becomes free."""

    def __init__(self, changed: Callable[[], None], by_queue: Counter[str] | None = None) -> None:
        self._attempts: dict[Attempt, None] = {}  # by identity: hashing an id costs more than the rest
        self._changed = changed
        self._by_queue = by_queue  # counted only for those who ask

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt] = None
        if self._by_queue is not None:
            self._by_queue[attempt.claimed.queue] += 1

    def remove(self, attempt: Attempt) -> None:
        del self._attempts[attempt]
        if self._by_queue is not None:
            self._by_queue[attempt.claimed.queue] -= 1
        self._changed()

    def by_id(self) -> dict[UUID, Attempt]:
        return {attempt.claimed.id: attempt for attempt in self.all()}

    def all(self) -> list[Attempt]:
        while True:
            try:
                return list(self._attempts)
            except RuntimeError:  # asked from a thread while the loop changes it
                continue
