"""When a worker asks again for work, in case no notification arrives before."""

from __future__ import annotations

import random
import time
from typing import Final

POLL_INTERVAL_WITH_LISTENER_S = 64.0  # a worker that was seen within 75 s counts as asleep
POLL_INTERVAL_WITHOUT_LISTENER_S = 1.5  # without a working listener
# A transaction that commits while this worker falls asleep may see it awake and not notify it, and commit too
# late for the claim that found nothing. The same is true for 50 ms after a notification, in which others do
# not notify (engine/functions/leases/wakeups.sql). So the worker polls again before the long sleep, later
# each time, because a commit takes time. The first delay follows a claim that returned some tasks: a worker
# that is not full counts as awake, and is not notified.
POLL_DELAYS_BEFORE_SLEEP_S = (0.02, 0.06, 1.0, 5.0)
# While work arrives often, the next task is likely to be one that nobody announces.
POLL_DELAYS_WHILE_BUSY_S = (0.02, 0.01, 0.02, 0.04, 0.1, 1.0, 5.0)
BUSY_WITHIN_S: Final = 1.0  # two polls with work in this time


class PollSchedule:
    """Pauses that grow from poll to poll while there is no work."""

    def __init__(self) -> None:
        self._empty_polls = 0  # consecutive ones
        self._received_at = -BUSY_WITHIN_S
        self._busy = False

    def restart(self) -> None:
        """Poll often again, as after work, because others rely on this worker for a moment."""
        self._empty_polls = 0

    def record_poll(self, *, received: bool) -> None:
        """Take a poll into account, and whether it returned any work."""
        if not received:
            self._empty_polls += 1
            return
        now = time.monotonic()
        self._busy = now - self._received_at < BUSY_WITHIN_S
        self._received_at = now
        self._empty_polls = 0

    def get_pause_s(self, *, listens: bool) -> float:
        """Return the seconds until the next poll. It is random, so that many workers do not poll in step."""
        pause_s = POLL_INTERVAL_WITH_LISTENER_S if listens else POLL_INTERVAL_WITHOUT_LISTENER_S
        delays_s = POLL_DELAYS_WHILE_BUSY_S if self._busy else POLL_DELAYS_BEFORE_SLEEP_S
        if self._empty_polls < len(delays_s):
            pause_s = min(pause_s, delays_s[self._empty_polls])
        return pause_s * random.uniform(0.8, 1.0)  # noqa: S311
