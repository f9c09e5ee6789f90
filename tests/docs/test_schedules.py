"""Tests that the example of the schedules guide runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import wait_until

ROOT = Path(__file__).resolve().parents[2]


async def test_schedules_example_runs(url: Secret, conn: Connection) -> None:
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()}
    done = subprocess.run(
        [sys.executable, "examples/schedules.py"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 4
    command = [sys.executable, "-m", "holdfast", "worker", "examples/schedules.py"]
    worker = subprocess.Popen(command, env=environment, cwd=ROOT)
    try:
        names = "select array_agg(name order by name) from holdfast.schedules where source = 'schedules'"

        async def schedules_exist() -> bool:
            return bool(await conn.fetchval(names) == ["briefing", "sales", "stock"])

        await wait_until(schedules_exist)
        limit = "select max_running from holdfast.limit_rules where name = 'task:briefing'"
        assert await conn.fetchval(limit) == 2
        job_id = await conn.fetchval("select holdfast.run_schedule('briefing') ->> 'id'")

        async def job_succeeded() -> bool:
            return bool(
                await conn.fetchval("select holdfast.get_job_status($1::text::uuid) = 'succeeded'", job_id)
            )

        await wait_until(job_succeeded)
    finally:
        worker.terminate()
        worker.wait(40)
    schema = await conn.fetchval(
        "select schema ->> 'required' from holdfast.task_types where name = 'report'"
    )
    assert schema == '["kind"]'
