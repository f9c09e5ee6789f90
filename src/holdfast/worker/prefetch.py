"""Decide how many tasks to claim beyond the free slots, so that short tasks do not wait for the database.

A worker that runs ten tasks of a tenth of a millisecond would spend its time in round trips. So it claims as
many tasks as it can run in 50 ms, and starts a waiting one whenever another ends (task_executor.py). The
waiting tasks are leased and renewed like those that run. The worker claims ahead only while claims are full,
which means that there are more tasks than all workers take, and it gives back tasks that wait for too long: a
long task before them must not keep them from other workers.

The time in which no task ran does not count. A worker that waits for a slow database would otherwise seem
slow, claim less, and wait even more.
"""

from __future__ import annotations

from typing import Final

MAX_WAITING_WORK_S: Final = 0.05
MAX_TASKS_IN_WORKER: Final = 500  # running and waiting; more slots than that leave no room to wait
MIN_MEASURED_S: Final = 0.01


class PrefetchPlanner:
    """Measures how many tasks this worker can run per second. `extra_slots` is how many to claim ahead."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._measured_from: tuple[int, float] | None = None
        self.extra_slots = 0

    def record_claim(self, ended_count: int, busy_s: float, *, is_full: bool) -> None:
        """Take a claim response into account, and whether it was full.

        `ended_count` tasks have run in this worker so far, and in `busy_s` seconds at least one task ran.
        """
        if not is_full:
            self.reset()
            return
        if self._measured_from is None:
            self._measured_from = (ended_count, busy_s)
            return
        seconds = busy_s - self._measured_from[1]
        if seconds >= MIN_MEASURED_S:
            task_count = int((ended_count - self._measured_from[0]) / seconds * MAX_WAITING_WORK_S)
            self.extra_slots = max(0, min(task_count, MAX_TASKS_IN_WORKER) - self._concurrency)
            self._measured_from = (ended_count, busy_s)

    def reset(self) -> None:
        """Claim nothing ahead until the rate was measured again."""
        self.extra_slots = 0
        self._measured_from = None
