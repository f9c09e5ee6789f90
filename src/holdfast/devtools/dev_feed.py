"""What happens to jobs, a line for each change, as `holdfast dev` shows it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.cli import words
from holdfast.cli.output import Output
from holdfast.client import Client
from holdfast.devtools import samples
from holdfast.engine import search
from holdfast.errors import HoldfastError

MOST = 100
SHOWN = {"running", "succeeded", "failed", "cancelled", "partial", "retrying"}


async def submit_samples(client: Client) -> int:
    """Eight fine, two slow, one flaky, one broken."""
    calls: list[Any] = [
        *(samples.count_primes(20_000 * n) for n in range(1, 8)),
        samples.primes_between(20_000, 40_000),
        samples.slow(20),
        samples.slow(25),
        samples.stumble(2),
        samples.broken("a sample that cannot succeed"),
    ]
    for call in calls:
        await client.submit(call)
    return len(calls)


@dataclass
class Feed:
    """Remembers how it saw each job, and says what is different."""

    out: Output
    url: str
    began: float = field(default_factory=time.time)
    _seen: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    _expected: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    _away: bool = False

    async def show(self, client: Client) -> None:
        try:
            found = await _newest(client)
        except HoldfastError as problem:
            if not self._away:
                self.out.line(f"! {words.clean(problem.message, 200)}")
            self._away = True
            return
        if self._away:
            self.out.line("the database is back")
        self._away = False
        for job in reversed(found):
            self._one(job)

    def _one(self, job: dict[str, Any]) -> None:
        job_id, state, attempt = str(job["id"]), str(job["state"]), int(job.get("attempt") or 0)
        before = self._seen.get(job_id)
        self._seen[job_id] = (state, attempt)
        if before == (state, attempt) or state not in SHOWN:
            return
        created = words.moment(job["created_at"])
        if before is None and created is not None and created.timestamp() < self.began:
            return  # an old one
        self._back_again(job_id, job["type"], attempt)
        at = datetime.now().astimezone().strftime("%H:%M:%S")
        tried = f" attempt {attempt}" if attempt > 1 else ""
        told = f"{words.MARKS[state]} {words.clean(job['type'], 30)} {words.short(job_id)}{tried}"
        line = f"{told} {_note(job, state)}".rstrip()
        self.out.line(f" {at} {line:<60}  {self.url}/dashboard/jobs/{job_id}")

    async def running(self, client: Client) -> dict[str, int]:
        """What runs now, with the number of its attempt."""
        return {
            str(job["id"]): int(job.get("attempt") or 1)
            for job in await _newest(client)
            if job["state"] == "running"
        }

    def expect(self, jobs: dict[str, int]) -> None:
        """These were running when their worker was killed: say when they run again."""
        now = time.monotonic()
        self._expected |= {job: (now, attempt) for job, attempt in jobs.items()}

    def _back_again(self, job_id: str, kind: str, attempt: int) -> None:
        waited = self._expected.get(job_id)
        if waited and attempt > waited[1]:
            del self._expected[job_id]
            took = words.span(time.monotonic() - waited[0])
            self.out.line(f" recovered: {kind} {words.short(job_id)} runs again, {took} after the kill")


def _note(job: dict[str, Any], state: str) -> str:
    error = words.failure(job)
    if state == "running":
        return words.doing(job.get("progress")) if job.get("attempt", 1) == 1 else ""
    if error:
        again = f"  again {words.until(job.get('due_at'))}" if state == "retrying" else ""
        return words.clean(error, 80) + again
    return words.took(job.get("started_at"), job.get("finished_at"))


async def _newest(client: Client) -> list[dict[str, Any]]:
    async with (await client.open()).connection() as connection:
        return (await search.search_jobs(connection, "", limit=MOST)).rows
