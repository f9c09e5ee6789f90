"""The tasks this worker holds leases of, shared by the fetcher, the executor and the heartbeat's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.engine.leases import Claimed
from holdfast.worker.context import Context

# Stop this much before the lease ends by our own clock, so that the last write is still ours.
MARGIN = 0.15


@dataclass(eq=False)
class Attempt:
    claimed: Claimed
    context: Context
    runner: asyncio.Task[None]
    renewed_at: float = field(default_factory=time.monotonic)

    @property
    def must_stop_at(self) -> float:
        """When the lease may be over, counted from when the last good renewal was sent."""
        return self.renewed_at + self.claimed.lease_s * (1 - MARGIN)

    def stop(self, reason: str) -> None:
        """Ask it to stop. Async code is interrupted; plain code finds out at its next `check`."""
        if not self.context.cancelled:
            self.context.stop(reason)
            self.runner.cancel(reason)


class Running:
    """A dictionary with a bell: `changed` is called when a slot becomes free."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._attempts: dict[UUID, Attempt] = {}
        self._changed = changed

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt.claimed.id] = attempt

    def remove(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.claimed.id, None)
        self._changed()

    def all(self) -> list[Attempt]:
        return list(self._attempts.values())
