"""Read a notification: whether this worker shall ask for tasks.

A notification names the queues with work and one worker that shall ask. Either only that worker and a few
others hear it, each on its own channel, or all hear it, and it has the share of the others that shall ask too
(engine/functions/leases/wakeups.sql).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import msgspec


class Wakeup(msgspec.Struct, frozen=True):
    """A notification that queues have work."""

    queues: list[str]
    worker: str | None = None
    share: float = 1.0
    backup: bool = False  # ask only a moment later: the named worker shall take the task

    def is_for(
        self, worker: str, queues: Collection[str], choose: Callable[[], float] = random.random
    ) -> bool:
        """Return whether a worker with these queues shall ask for tasks."""
        if not any(queue in queues for queue in self.queues):
            return False
        return self.worker == worker or choose() < self.share


def parse_wakeup(payload: str) -> Wakeup | None:
    """Return the wakeup, or None if the text is something else: then there may be work for everybody."""
    try:
        return msgspec.json.decode(payload, type=Wakeup)
    except msgspec.DecodeError:
        return None
