"""The attempts of this worker, shared by the fetcher, the task executor and the heartbeat's thread."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from holdfast.definitions.tasks import Task
from holdfast.engine.leases import LeasedTask
from holdfast.worker.context import TaskContext
from holdfast.worker.heartbeat_protocol import PLACE_CHILD, PLACE_WORKER_ONLY, encode_lease_key

# A worker stops an attempt this fraction of the lease before the lease ends by its own clock, so that the
# attempt's last write still happens under the lease.
LEASE_SAFETY_SHARE: Final = 0.15

# Reasons why an attempt is stopped, besides those that the heartbeat reports ("cancelled", "lease lost").
STOP_REASON_TIME_LIMIT: Final = "time limit"
STOP_REASON_RELEASED: Final = "released"
STOP_REASON_UNRENEWED: Final = "lease not renewed in time"
# After these reasons the task is released: another worker runs it and no attempt is charged. After any other
# reason but the time limit the lease belongs to somebody else, so there is no outcome to record.
RELEASING_STOP_REASONS: Final = frozenset({STOP_REASON_RELEASED, STOP_REASON_UNRENEWED})


class Attempt:
    """One claimed task in this process, from its claim to its outcome."""

    __slots__ = (
        "began",
        "claimed",
        "context",
        "ended",
        "on_renewed",
        "on_stop",
        "place",
        "renewed_at",
        "runner",
        "started_at",
        "stop_reason",
        "task",
    )

    def __init__(
        self,
        claimed: LeasedTask,
        task: Task[..., Any],
        context: TaskContext | None,
        *,
        started_at: float,
        renewed_at: float,
    ) -> None:
        self.claimed = claimed
        self.task = task
        self.context = context
        self.started_at = started_at
        self.renewed_at = renewed_at
        self.runner: asyncio.Task[Any] | None = None
        self.began = False
        self.ended = False
        self.place = PLACE_WORKER_ONLY  # where its code runs (heartbeat_protocol.py)
        self.stop_reason: str | None = None
        # Called to stop the attempt; None cancels the asyncio task. Threads and child processes set it.
        self.on_stop: Callable[[str], None] | None = None
        # Called in the heartbeat's thread after a confirmed renewal. The host of a child process sets it.
        self.on_renewed: Callable[[Attempt], None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the attempt waits for a slot, so that nothing of it has run."""
        return self.runner is None and not self.ended

    @property
    def isolated(self) -> bool:
        """Whether the attempt runs in a child process."""
        return self.place == PLACE_CHILD

    @property
    def lease_safe_until(self) -> float:
        """The monotonic time until which the lease surely holds, with a safety margin.

        It counts from the time at which the last confirmed renewal was sent.
        """
        return self.renewed_at + self.claimed.lease_s * (1 - LEASE_SAFETY_SHARE)

    @property
    def time_limit_at(self) -> float:
        return self.started_at + self.claimed.timeout_s

    def mark_stopped(self, reason: str) -> bool:
        """Record why the attempt must stop. Return False if the attempt was stopped or ended before.

        Safe to call from any thread. Plain functions see it at their next `ctx.check()`.
        """
        if self.stop_reason is not None or self.ended:
            return False
        self.stop_reason = reason
        if self.context is not None:
            self.context.stop(reason)
        return True

    def interrupt_code(self) -> None:
        """Interrupt the code of the attempt, if possible. Call this method on the event loop."""
        if self.on_stop is not None:
            self.on_stop(self.stop_reason or "")
        elif self.began and self.runner is not None and not self.ended:
            self.runner.cancel(self.stop_reason)

    def stop(self, reason: str) -> None:
        """Record the stop reason and interrupt the attempt's code. Call this method on the event loop."""
        if self.mark_stopped(reason):
            self.interrupt_code()


class RunningAttempts:
    """The attempts that run or wait in this worker. `on_removed` is called when an attempt ends."""

    def __init__(self, on_removed: Callable[[], None], count_by_queue: Counter[str] | None = None) -> None:
        self._attempts: dict[Attempt, None] = {}  # by identity: hashing an id costs more than the rest
        self._on_removed = on_removed
        self._count_by_queue = count_by_queue

    def __len__(self) -> int:
        return len(self._attempts)

    def add_attempt(self, attempt: Attempt) -> None:
        self._attempts[attempt] = None
        if self._count_by_queue is not None:
            self._count_by_queue[attempt.claimed.queue] += 1

    def remove_attempt(self, attempt: Attempt) -> None:
        del self._attempts[attempt]
        if self._count_by_queue is not None:
            self._count_by_queue[attempt.claimed.queue] -= 1
        self._on_removed()

    def index_by_lease_key(self) -> dict[bytes, Attempt]:
        """Return the attempts by the lease keys that the frames of the heartbeat process carry."""
        return {encode_lease_key(attempt.claimed): attempt for attempt in self.list_attempts()}

    def list_attempts(self) -> list[Attempt]:
        while True:
            try:
                return list(self._attempts)
            except RuntimeError:  # called from a thread while the loop changes the dictionary
                continue
