"""A worker leaves what it has loaded out of garbage collections, which would stop its event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import frozen_objects_task

from holdfast import Client
from holdfast.settings import Secret


async def test_loaded_objects_are_frozen(url: Secret) -> None:
    async with Client(url.reveal()) as client:
        job = await client.submit(frozen_objects_task.count_frozen_objects())
        command = [sys.executable, "-m", "holdfast", "worker", frozen_objects_task.__file__, "--drain"]
        environment = {**os.environ, "DATABASE_URL": url.reveal()}
        await asyncio.to_thread(subprocess.run, command, env=environment, check=True)
        assert await job.result() > 10_000
