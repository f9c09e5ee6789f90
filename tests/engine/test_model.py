"""The engine next to a plain Python model: random sequences of operations must have the same effect on both.

The model knows one thing per task: what the rules of docs/explain/states.md say. Time moves only when a step
says so, in steps larger than every wait, so the model needs no clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from manual_worker import ManualWorker, build_outcome, read_task_row, submit_job

from holdfast.engine import jobs, leases
from holdfast.engine.connection import Connection
from holdfast.engine.leases import LeasedTask
from holdfast.testing import Clock

ATTEMPTS = 3
MAX_PROMPT_RETURNS = 9  # a task that is lost more often in a row waits before it runs again
ENDED = {"succeeded", "failed", "cancelled"}


@dataclass
class ModelTask:
    status: str = "ready"
    attempt: int = 0
    failures: int = 0
    losses: int = 0  # in a row
    lease: LeasedTask | None = None
    outcome: str | None = None  # of the last lease, if its holder told it
    old: list[LeasedTask] = field(default_factory=list)

    def ends(self, status: str) -> None:
        self.status = status

    def finish(self, kind: str) -> str:
        """What the engine must answer to the holder of the last lease, and what becomes of the task."""
        if self.status != "running":
            return "ok" if self._repeats(kind) else "stale"
        self.outcome = kind
        self.losses = self.losses if kind == "release" else 0
        if kind == "succeed":
            self.ends("succeeded")
        elif kind == "cancel":
            self.ends("cancelled")
        elif kind == "reject" or (kind == "fail" and self.failures + 1 >= ATTEMPTS):
            self.failures += 1
            self.ends("failed")
        elif kind == "fail":
            self.failures += 1
            self.ends("scheduled")
        else:
            self.ends("scheduled" if kind == "snooze" else "ready")
        return "ok"

    def _repeats(self, kind: str) -> bool:
        if self.outcome is None:
            return False
        return kind == self.outcome or (
            self.status == "failed" and {kind, self.outcome} <= {"fail", "reject"}
        )

    def lose(self) -> None:
        self.outcome = None
        self.losses += 1
        self.ends("ready" if self.losses <= MAX_PROMPT_RETURNS else "scheduled")


@dataclass
class ModelState:
    conn: Connection
    clock: Clock
    chance: random.Random
    tasks: dict[UUID, ModelTask] = field(default_factory=dict)

    async def step(self) -> str:
        what = self.chance.choice(
            [
                "submit",
                "claim",
                "claim",
                "finish",
                "finish",
                "finish",
                "stale",
                "cancel",
                "wait",
                "lose",
                "retry",
                "beat",
            ]
        )
        await getattr(self, what)()
        return what

    def pick(self, *statuses: str) -> UUID | None:
        fitting = [i for i, task in self.tasks.items() if not statuses or task.status in statuses]
        return self.chance.choice(fitting) if fitting else None

    async def submit(self) -> None:
        created = await submit_job(self.conn, attempts=ATTEMPTS, crashes=1, timeout_s=100_000)
        self.tasks[created] = ModelTask()

    async def claim(self) -> None:
        slots = self.chance.randint(1, 3)
        ready = sum(task.status == "ready" for task in self.tasks.values())
        taken = await ManualWorker(self.conn, f"w{self.chance.random()}").claim_tasks(slots)
        assert len(taken) == min(slots, ready)
        for lease in taken:
            task = self.tasks[lease.id]
            assert task.status == "ready"
            assert lease.attempt == task.attempt + 1
            if task.lease:
                task.old.append(task.lease)
            task.status, task.attempt, task.lease, task.outcome = "running", lease.attempt, lease, None

    async def finish(self) -> None:
        rows = self.pick()
        if rows is None or (task := self.tasks[rows]).lease is None:
            return
        kind: Any = self.chance.choice(["succeed", "fail", "reject", "snooze", "release", "cancel"])
        body = {"message": "x", "delay_s": 5}
        answer = await ManualWorker(self.conn).finish_and_claim([build_outcome(task.lease, kind, body)])
        assert answer.answers[0] == task.finish(kind), kind

    async def stale(self) -> None:
        rows = self.pick()
        if rows is None or not self.tasks[rows].old:
            return
        old = self.chance.choice(self.tasks[rows].old)
        assert (
            await ManualWorker(self.conn).finish_task(old, self.chance.choice(["succeed", "fail", "release"]))
            == "stale"
        )

    async def beat(self) -> None:
        for task in self.tasks.values():
            if task.lease:
                lost = (await leases.heartbeat_tasks(self.conn, worker="w", held=[task.lease])).lost
                assert (task.lease.lease in lost) == (task.status != "running")

    async def cancel(self) -> None:
        if (rows := self.pick()) is not None:
            alive = self.tasks[rows].status not in ENDED
            assert (await jobs.cancel_job(self.conn, rows))["cancelled"] is alive
            if alive:
                self.tasks[rows].outcome = None
                self.tasks[rows].ends("cancelled")

    async def wait(self) -> None:
        """Long enough for every back-off; leases are renewed before and after."""
        for seconds in range(0, 1200, 50):
            held = [t.lease for t in self.tasks.values() if t.status == "running" and t.lease]
            await leases.heartbeat_tasks(self.conn, worker="w", held=held)
            await self.clock.advance(timedelta(seconds=50 if seconds else 1))
        await self._look()

    async def lose(self) -> None:
        """Every running task loses its lease; what is scheduled is due by then."""
        await self.clock.advance(timedelta(seconds=1200))
        await self.conn.fetchval("select holdfast.reclaim_stale_tasks()")
        for task in self.tasks.values():
            if task.status == "running":
                task.lose()
        await self.clock.advance(timedelta(seconds=1200))
        await self._look()

    async def _look(self) -> None:
        await self.conn.fetchval("select holdfast.promote_due_tasks('-infinity', holdfast.now(), 1000)")
        for task in self.tasks.values():
            if task.status == "scheduled":
                task.status = "ready"

    async def retry(self) -> None:
        if (rows := self.pick(*ENDED)) is not None:
            assert await jobs.retry_job(self.conn, rows) == 1
            task = self.tasks[rows]
            if task.lease:
                task.old.append(task.lease)
            task.status, task.failures, task.losses, task.lease, task.outcome = "ready", 0, 0, None, None

    async def check(self) -> None:
        for task_id, task in self.tasks.items():
            row = await read_task_row(self.conn, task_id)
            assert (row["status"], row["attempt"]) == (task.status, task.attempt)
            if task.status not in ENDED:
                assert (row["failures"], row["crashes"]) == (task.failures, 0)
                assert (row["losses"] or 0) == task.losses


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 12))]
)
async def test_random_operations_do_what_the_model_does(conn: Connection, clock: Clock, seed: int) -> None:
    world = ModelState(conn, clock, random.Random(seed))
    steps: list[str] = []
    for _ in range(60):
        steps.append(await world.step())
        await world.check()
