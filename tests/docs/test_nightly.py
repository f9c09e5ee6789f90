"""The example of the guide to schedules works as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.engine.connection import Connection
from holdfast.settings import Secret
from holdfast.testing import eventually

ROOT = Path(__file__).resolve().parents[2]


async def test_schedules_as_data_and_in_code(url: Secret, conn: Connection) -> None:
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url.reveal()}
    done = subprocess.run(
        [sys.executable, "examples/nightly.py"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 4
    command = [sys.executable, "-m", "holdfast", "worker", "examples/nightly.py"]
    worker = subprocess.Popen(command, env=environment, cwd=ROOT)
    try:
        names = "select array_agg(name order by name) from holdfast.schedules where source = 'nightly'"

        async def written() -> bool:
            return bool(await conn.fetchval(names) == ["briefing", "sales", "stock"])

        await eventually(written)
        limit = "select max_running from holdfast.limit_rules where name = 'task:briefing'"
        assert await conn.fetchval(limit) == 2
        ran = await conn.fetchval("select holdfast.run_schedule('briefing') ->> 'id'")

        async def ended() -> bool:
            return bool(await conn.fetchval("select holdfast.job_status($1::text::uuid) = 'succeeded'", ran))

        await eventually(ended)
    finally:
        worker.terminate()
        worker.wait(40)
    schema = await conn.fetchval(
        "select schema ->> 'required' from holdfast.task_types where name = 'report'"
    )
    assert schema == '["kind"]'
