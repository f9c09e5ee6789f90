"""What happens to jobs, a line for each change, as `holdfast dev` shows it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.cli.output import CliOutput
from holdfast.client import Client
from holdfast.devtools import sample_tasks
from holdfast.engine import search
from holdfast.errors import HoldfastError
from holdfast.formatting import (
    STATE_SYMBOLS,
    format_duration,
    format_elapsed,
    format_error,
    format_progress,
    format_time_until,
    parse_time,
    sanitize_text,
    shorten_id,
)

MOST = 100
SHOWN = {"running", "succeeded", "failed", "cancelled", "partial", "retrying"}


async def submit_samples(client: Client) -> int:
    """Eight fine, two slow, one flaky, one broken."""
    calls: list[Any] = [
        *(sample_tasks.count_primes(20_000 * n) for n in range(1, 8)),
        sample_tasks.primes_between(20_000, 40_000),
        sample_tasks.slow(20),
        sample_tasks.slow(25),
        sample_tasks.stumble(2),
        sample_tasks.broken("a sample that cannot succeed"),
    ]
    for call in calls:
        await client.submit(call)
    return len(calls)


@dataclass
class Feed:
    """Remembers how it saw each job, and says what is different."""

    out: CliOutput
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
                self.out.print_line(f"! {sanitize_text(problem.message, 200)}")
            self._away = True
            return
        if self._away:
            self.out.print_line("the database is back")
        self._away = False
        for job in reversed(found):
            self._one(job)

    def _one(self, job: dict[str, Any]) -> None:
        job_id, state, attempt = str(job["id"]), str(job["state"]), int(job.get("attempt") or 0)
        before = self._seen.get(job_id)
        self._seen[job_id] = (state, attempt)
        if before == (state, attempt) or state not in SHOWN:
            return
        created = parse_time(job["created_at"])
        if before is None and created is not None and created.timestamp() < self.began:
            return  # an old one
        self._back_again(job_id, job["type"], attempt)
        at = datetime.now().astimezone().strftime("%H:%M:%S")
        tried = f" attempt {attempt}" if attempt > 1 else ""
        told = f"{STATE_SYMBOLS[state]} {sanitize_text(job['type'], 30)} {shorten_id(job_id)}{tried}"
        line = f"{told} {_note(job, state)}".rstrip()
        self.out.print_line(f" {at} {line:<60}  {self.url}/dashboard/jobs/{job_id}")

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
            took = format_duration(time.monotonic() - waited[0])
            self.out.print_line(f" recovered: {kind} {shorten_id(job_id)} runs again, {took} after the kill")


def _note(job: dict[str, Any], state: str) -> str:
    error = format_error(job)
    if state == "running":
        return format_progress(job.get("progress")) if job.get("attempt", 1) == 1 else ""
    if error:
        again = f"  again {format_time_until(job.get('due_at'))}" if state == "retrying" else ""
        return sanitize_text(error, 80) + again
    return format_elapsed(job.get("started_at"), job.get("finished_at"))


async def _newest(client: Client) -> list[dict[str, Any]]:
    async with (await client.open()).connection() as connection:
        return (await search.search_jobs(connection, "", limit=MOST)).rows
