"""When to ask the database, and for how many. Never runs user code.

One round trip carries the outcomes of what was finished and brings the tasks for the slots that are free.
There is a reason for one when outcomes have waited long enough, when slots are free and there may be work
(the last answer was full, a notification came, something falls due), or when it is time to look anyway.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from holdfast import telemetry
from holdfast.engine import leases
from holdfast.engine.connection import Database
from holdfast.engine.leases import Claimed
from holdfast.worker.outbox import Outbox
from holdfast.worker.running import Running
from holdfast.worker.service import Service

SAFETY_POLL = 75.0  # with a listener that is proven to hear
BLIND_POLL = 1.5  # without one
# A task that commits while we fall asleep may find us awake and not notify, and be too late for the claim
# that found nothing. So we look again before the long sleep, later each time, as a commit can take its time.
FALLING_ASLEEP = (0.05, 0.5, 5.0)


class Fetcher(Service):
    def __init__(
        self,
        database: Database,
        worker: str,
        queues: Sequence[str],
        types: Sequence[str],
        concurrency: int,
        outbox: Outbox,
        launch: Callable[[Claimed], None],
    ) -> None:
        super().__init__()
        self._database = database
        self._worker = worker
        self._queues = list(queues)
        self._types = list(types)
        self._concurrency = concurrency
        self._outbox = outbox
        self._launch = launch
        self.running = Running(self.ring)
        self.claiming = True
        self.hears: Callable[[], bool] = lambda: False
        self._bell = asyncio.Event()
        self._look_at = 0.0
        self._looks = 0  # in vain, since something was found
        self._cursors: str | None = None

    def ring(self) -> None:
        """Something changed in this process: an outcome to send, or a slot to fill."""
        self._bell.set()

    def wake(self) -> None:
        """There may be work."""
        self._look_at = 0.0
        self._bell.set()

    def heard(self, _: str) -> None:
        self.wake()

    async def step(self) -> None:
        await self._reason()
        slots = self._slots()
        outcomes = self._outbox.take()
        try:
            async with self._database.connection() as connection:
                answer = await leases.exchange(
                    connection,
                    worker=self._worker,
                    outcomes=outcomes,
                    slots=slots,
                    queues=self._queues,
                    types=self._types,
                    cursors=self._cursors,
                )
        except BaseException:
            self._outbox.put_back(outcomes)
            raise
        self._outbox.answered()
        for outcome, verdict in zip(outcomes, answer.answers, strict=True):
            if verdict != "ok":
                telemetry.emit("task.lease_lost", task=outcome.id, attempt=outcome.attempt)
        self._cursors = answer.cursors
        if slots:
            self._plan(got=len(answer.tasks), wanted=slots, next_s=answer.next_s)
        for claimed in answer.tasks:
            self._launch(claimed)

    def _slots(self) -> int:
        return max(0, self._concurrency - len(self.running)) if self.claiming else 0

    def _plan(self, *, got: int, wanted: int, next_s: float | None) -> None:
        """When to look again for work without being told."""
        if got == wanted:
            self._look_at = 0.0
            return
        poll = SAFETY_POLL if self.hears() else BLIND_POLL
        self._looks = 0 if got else self._looks + 1
        if self._looks < len(FALLING_ASLEEP):
            poll = min(poll, FALLING_ASLEEP[self._looks])
        poll *= random.uniform(0.8, 1.0)  # noqa: S311  (so that a fleet does not poll in step)
        self._look_at = time.monotonic() + min(poll, max(next_s, 0.001) if next_s is not None else poll)

    async def _reason(self) -> None:
        """Returns when a round trip is worth it."""
        while True:
            pause = self._outbox.pause
            if self._slots():
                until_look = self._look_at - time.monotonic()
                pause = until_look if pause is None else min(pause, until_look)
            if pause is not None and pause <= 0:
                return
            self._bell.clear()
            try:
                await asyncio.wait_for(self._bell.wait(), pause)
            except TimeoutError:
                return
