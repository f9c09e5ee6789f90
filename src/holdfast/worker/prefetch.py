"""Decide how many tasks to claim beyond the free slots, so that short tasks do not wait for the database.

A worker that runs ten tasks of a tenth of a millisecond would spend its time in round trips. So it claims as
many tasks as it ends in 50 ms, and starts a waiting one whenever another ends (task_executor.py). The waiting
tasks are leased and renewed like those that run. The worker claims ahead only while claims are full, which
means that there are more tasks than all workers take, and it gives back tasks that wait for too long: a
long task before them must not keep them from other workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.engine.leases import Outcome

MAX_WAITING_WORK_S: Final = 0.05
MAX_TASKS_IN_WORKER: Final = 500  # running and waiting; more slots than that leave no room to wait
MIN_MEASURED_S: Final = 0.02


class PrefetchPlanner:
    """Measures how many tasks this worker ends per second. `extra_slots` is how many to claim ahead."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._measured_since: float | None = None
        self._ended_count = 0
        self.extra_slots = 0

    def record_claim(self, outcomes: Sequence[Outcome], *, is_full: bool, now: float) -> None:
        """Take a claim response into account: the outcomes that it confirmed, and whether it was full."""
        if not is_full:
            self.reset()
            return
        if self._measured_since is None:
            self._measured_since = now
            return
        self._ended_count += sum(1 for outcome in outcomes if outcome.kind != "release")
        seconds = now - self._measured_since
        if seconds >= MIN_MEASURED_S:
            task_count = int(self._ended_count / seconds * MAX_WAITING_WORK_S)
            self.extra_slots = max(0, min(task_count, MAX_TASKS_IN_WORKER) - self._concurrency)
            self._measured_since, self._ended_count = now, 0

    def reset(self) -> None:
        """Claim nothing ahead until the rate was measured again."""
        self.extra_slots = 0
        self._measured_since, self._ended_count = None, 0
