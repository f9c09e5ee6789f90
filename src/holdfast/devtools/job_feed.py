"""The feed of `holdfast dev`: print one line for each change of a job."""

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
    parse_iso_time_or_none,
    sanitize_text,
    shorten_id,
)

MAX_WATCHED_JOBS = 100
PRINTED_JOB_STATES = {"running", "succeeded", "failed", "cancelled", "partial", "retrying"}


async def submit_sample_jobs(client: Client) -> int:
    """Submit the sample jobs of `holdfast dev` and return how many there are.

    Eight jobs are fast, two are slow, one succeeds on its third attempt, and one fails.
    """
    calls: list[Any] = [
        *(sample_tasks.count_primes(20_000 * n) for n in range(1, 8)),
        sample_tasks.build_prime_graph(20_000, 40_000),
        sample_tasks.wait_seconds(20),
        sample_tasks.wait_seconds(25),
        sample_tasks.fail_then_succeed(2),
        sample_tasks.always_fail("a sample that cannot succeed"),
    ]
    for call in calls:
        await client.submit(call)
    return len(calls)


@dataclass
class JobFeed:
    """Prints a line for each job whose state or attempt has changed since the last call."""

    output: CliOutput
    url: str
    started_at: float = field(default_factory=time.time)
    _last_states: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    _killed_jobs: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    _database_failed: bool = False

    async def print_changes(self, client: Client) -> None:
        try:
            rows = await _list_newest_jobs(client)
        except HoldfastError as error:
            if not self._database_failed:
                self.output.print_line(f"! {sanitize_text(error.message, 200)}")
            self._database_failed = True
            return
        if self._database_failed:
            self.output.print_line("the database is available again")
        self._database_failed = False
        for row in reversed(rows):
            self._print_change(row)

    def _print_change(self, row: dict[str, Any]) -> None:
        job_id, state, attempt = str(row["id"]), str(row["state"]), int(row.get("attempt") or 0)
        previous = self._last_states.get(job_id)
        self._last_states[job_id] = (state, attempt)
        if previous == (state, attempt) or state not in PRINTED_JOB_STATES:
            return
        created = parse_iso_time_or_none(row["created_at"])
        if previous is None and created is not None and created.timestamp() < self.started_at:
            return  # submitted before `holdfast dev` started
        self._print_recovery(job_id, row["type"], attempt)
        at = datetime.now().astimezone().strftime("%H:%M:%S")
        attempt_note = f" attempt {attempt}" if attempt > 1 else ""
        title = f"{STATE_SYMBOLS[state]} {sanitize_text(row['type'], 30)} {shorten_id(job_id)}{attempt_note}"
        line = f"{title} {_format_change_note(row, state)}".rstrip()
        self.output.print_line(f" {at} {line:<60}  {self.url}/dashboard/jobs/{job_id}")

    async def list_running_jobs(self, client: Client) -> dict[str, int]:
        """Return the ids of the running jobs, each with the number of its current attempt."""
        return {
            str(row["id"]): int(row.get("attempt") or 1)
            for row in await _list_newest_jobs(client)
            if row["state"] == "running"
        }

    def expect_recovery(self, jobs: dict[str, int]) -> None:
        """Record jobs whose worker was killed, so that the feed prints when they run again."""
        now = time.monotonic()
        self._killed_jobs |= {job_id: (now, attempt) for job_id, attempt in jobs.items()}

    def _print_recovery(self, job_id: str, job_type: str, attempt: int) -> None:
        killed = self._killed_jobs.get(job_id)
        if killed and attempt > killed[1]:
            del self._killed_jobs[job_id]
            delay = format_duration(time.monotonic() - killed[0])
            self.output.print_line(
                f" recovered: {job_type} {shorten_id(job_id)} runs again, {delay} after the kill"
            )


def _format_change_note(row: dict[str, Any], state: str) -> str:
    error = format_error(row)
    if state == "running":
        return format_progress(row.get("progress")) if row.get("attempt", 1) == 1 else ""
    if error:
        retry = f"  retry {format_time_until(row.get('due_at'))}" if state == "retrying" else ""
        return sanitize_text(error, 80) + retry
    return format_elapsed(row.get("started_at"), row.get("finished_at"))


async def _list_newest_jobs(client: Client) -> list[dict[str, Any]]:
    async with client.connection() as connection:
        return (await search.search_jobs(connection, "", limit=MAX_WATCHED_JOBS)).rows
