"""Every outcome rule in every host of the runner, with the real engine: the recorded outcomes are equal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import conformance_app as app
import pytest

from holdfast import Client, Worker, telemetry
from holdfast.definitions.tasks import Call
from holdfast.engine.connection import Connection, Database, open_connection
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until
from holdfast.testing.application import AppUnderTest
from holdfast.testing.drain import DrainHost, drain

SOON = timedelta(seconds=90)

# rule: outcome of the attempt, status of the task, charged failures, type and message of the error, output
EXPECTED: dict[str, tuple[Any, ...]] = {
    "returns": ("succeed", "succeeded", 0, None, None, {"n": 1}),
    "returns_none": ("succeed", "succeeded", 0, None, None, None),
    "returns_object": (
        "reject",
        "failed",
        1,
        "InvalidError",
        "...",
        None,
    ),
    "returns_signal": (
        "reject",
        "failed",
        1,
        "InvalidError",
        "The task returned Snooze. Raise it: raise Snooze(...).",
        None,
    ),
    "raises": ("fail", "scheduled", 1, "ValueError", "no", None),
    "raises_last": ("fail", "failed", 1, "ValueError", "no", None),
    "never_for": ("reject", "failed", 1, "ValueError", "no", None),
    "retry_for": ("reject", "failed", 1, "ValueError", "no", None),
    "own_timeout": ("fail", "scheduled", 1, "TimeoutError", "the site did not answer", None),
    "own_timeout_never": ("reject", "failed", 1, "TimeoutError", "the site did not answer", None),
    "snoozes": ("snooze", "scheduled", 0, None, None, None),
    "cancels": ("cancel", "cancelled", 0, "Cancelled", "nothing to do", None),
    "rejects": ("reject", "failed", 1, "Reject", "no such page", None),
    "rate_limited": ("limited", "scheduled", 0, None, None, None),
    "exits": ("fail", "scheduled", 1, "SystemExit", "3", None),
    "cancels_itself": ("fail", "scheduled", 1, "RuntimeError", "the task cancelled itself", None),
    "time_limit": ("fail", "scheduled", 1, "TimeoutError", "ran longer than 0:00:05", None),
    "job_cancelled": ("stopped", "cancelled", 0, "Cancelled", "not needed", None),
    "lease_lost": ("stopped", "running", 0, None, None, None),
    "bad_arguments": ("reject", "failed", 1, "InvalidError", "...", None),
    "steps": ("fail", "scheduled", 1, "ValueError", "after step 42", None),
    "submits": ("succeed", "succeeded", 0, None, None, "submitted"),
    "saves": ("succeed", "succeeded", 0, None, None, "content"),
    "logs": ("reject", "failed", 1, "Reject", "logged", None),
}
ANY_TEXT = "..."


@pytest.fixture
async def client(url: Secret, settings: Settings, tmp_path: Path) -> AsyncGenerator[Client]:
    settings = replace(settings, storage_url=Secret(str(tmp_path / "store")))
    async with Client(url.reveal(), settings=settings) as client:
        yield client


class Jobs:
    """One job per rule for one host, and what is recorded about it."""

    def __init__(self, client: Client, conn: Connection, host: str) -> None:
        self.client = client
        self.conn = conn
        self.host = host
        self.ids: dict[str, UUID] = {}
        self.outcomes: dict[UUID, str] = {}

    async def submit(self) -> None:
        for rule in EXPECTED:
            arguments = {"x": "not a number"} if rule == "bad_arguments" else {}
            handle = await self.client.submit(Call(app.TASKS[f"{rule}_{self.host}"], arguments))
            self.ids[rule] = handle.id

    def collect_outcome(self, _: str, fields: dict[str, Any]) -> None:
        if fields["outcome"] != "release":  # it waited too long for a slot, and runs later
            self.outcomes.setdefault(fields["task"], fields["outcome"])

    async def fetch_task(self, rule: str) -> Any:
        return await self.conn.fetchrow(
            "select status, failures, error, output, phase, percent from holdfast.all_tasks where id = $1",
            self.ids[rule],
        )

    async def interfere(self) -> None:
        """Cancel one job and take the lease of another while their tasks run."""
        await wait_until(lambda: self.has_started("job_cancelled"), within=SOON)
        await self.client.cancel(self.ids["job_cancelled"], reason="not needed")
        await wait_until(lambda: self.has_started("lease_lost"), within=SOON)
        await self.conn.execute(
            "update holdfast.tasks set nonce = nonce + 1, lease_until = now() + interval '1 day'"
            " where id = $1",
            self.ids["lease_lost"],
        )

    async def has_started(self, rule: str) -> bool:
        return bool((await self.fetch_task(rule))["phase"] == "started")

    async def wait_for_outcomes(self) -> None:
        await wait_until(lambda: set(self.ids.values()) <= self.outcomes.keys(), within=SOON)
        for rule in EXPECTED:
            if rule != "lease_lost":
                await wait_until(partial(self.is_recorded, rule), within=SOON)

    async def is_recorded(self, rule: str) -> bool:
        return (await self.fetch_task(rule))["status"] not in {"running", "ready"}

    async def read_records(self) -> dict[str, tuple[Any, ...]]:
        records: dict[str, tuple[Any, ...]] = {}
        for rule, job in self.ids.items():
            row = await self.fetch_task(rule)
            error = json.loads(row["error"]) if row["error"] else {}
            output = json.loads(row["output"]) if row["output"] else None
            message = ANY_TEXT if EXPECTED[rule][4] == ANY_TEXT else error.get("message")
            records[rule] = (
                self.outcomes[job],
                row["status"],
                row["failures"],
                error.get("type"),
                message,
                output,
            )
        return records


async def run_worker(client: Client, jobs: Jobs) -> None:
    tasks = [app.TASKS[f"{rule}_{jobs.host}"] for rule in EXPECTED]
    concurrency = 6 if jobs.host.startswith("process") else 30  # few children: starting them is slow
    async with Worker(client, tasks=tasks, concurrency=concurrency) as worker:
        running = asyncio.create_task(worker.run())
        await asyncio.gather(jobs.interfere(), jobs.wait_for_outcomes())
        worker.stop()
        await running


async def run_drain(client: Client, jobs: Jobs, url: Secret) -> None:
    application = AppUnderTest({f"{rule}_{jobs.host}": app.TASKS[f"{rule}_{jobs.host}"] for rule in EXPECTED})
    async with (
        Database(url, client.settings) as database,
        open_connection(url, client.settings) as connection,
    ):
        host = DrainHost(application, database, connection)
        draining = drain(host, until=timedelta(0), max_attempts=100, state=None)
        try:
            await asyncio.gather(jobs.interfere(), draining)
        finally:
            await host.close()


@pytest.mark.parametrize("host", app.HOSTS)
async def test_every_rule_has_the_same_recorded_outcome(
    client: Client, conn: Connection, url: Secret, host: str
) -> None:
    jobs = Jobs(client, conn, host)
    await jobs.submit()
    unsubscribe = telemetry.subscribe(jobs.collect_outcome, only=["task.finished"])
    try:
        if host.startswith("drain"):
            await run_drain(client, jobs, url)
        else:
            await run_worker(client, jobs)
    finally:
        unsubscribe()
    assert await jobs.read_records() == EXPECTED
    await check_effects(jobs)


async def check_effects(jobs: Jobs) -> None:
    """What tasks did through their context is the same in every host."""
    client, conn = jobs.client, jobs.conn
    stepped = await jobs.fetch_task("steps")
    assert (stepped["phase"], stepped["percent"]) == ("stepping", 25.0)
    steps = await conn.fetch(
        "select name, value from holdfast.step_results where task_id = $1", jobs.ids["steps"]
    )
    assert [(step["name"], json.loads(step["value"])) for step in steps] == [("double", 42)]
    job = await client.get(jobs.ids["submits"])
    children = sorted((task.type, task.status) for task in job.tasks if task.type == "child")
    assert children == [("child", "ready"), ("child", "ready")]
    files = await client.files.list(job=jobs.ids["saves"])
    assert [(file.name, file.meta["pages"]) for file in files] == [("a.txt", 1)]
    lines = await conn.fetch("select level, message from holdfast.logs where task_id = $1", jobs.ids["logs"])
    assert [(line["level"], line["message"]) for line in lines] == [("warning", "first line")]
    attempt = await conn.fetchrow(
        "select outcome, error_type, traceback, fingerprint from holdfast.attempts where task_id = $1",
        jobs.ids["raises"],
    )
    assert attempt is not None
    assert (attempt["outcome"], attempt["error_type"]) == ("failed", "ValueError")
    assert "in raise_error" in attempt["traceback"]
    assert attempt["fingerprint"] == "ValueError conformance_app.py:raise_error"
