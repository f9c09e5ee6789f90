"""Tasks for tests of the heartbeat process. Each run appends lines to the file named in RECORD."""

from __future__ import annotations

import asyncio
import subprocess
import time
from datetime import timedelta

from misbehaving_app import get_gate_path
from recorder_app import QUICK, record

from holdfast import Ctx, task

LONG_LEASE = timedelta(seconds=120)  # longer than any test waits
SHORT_LEASE = timedelta(seconds=2)


@task(queue="record", retry=QUICK, lease=LONG_LEASE)
async def wait_with_long_lease(ctx: Ctx, name: str) -> int:
    record("began", name, ctx.attempt)
    while not get_gate_path(name).exists():
        await asyncio.sleep(0.01)
    return ctx.attempt


@task(queue="record", retry=QUICK, lease=SHORT_LEASE)
async def wait_with_short_lease(ctx: Ctx, name: str) -> int:
    record("began", name, ctx.attempt)
    while not get_gate_path(name).exists():
        await asyncio.sleep(0.01)
    return ctx.attempt


@task(queue="record", retry=QUICK, process=True, lease=LONG_LEASE)
def start_program_in_child(ctx: Ctx, name: str) -> int:
    """Starts a program that would outlive the child process and its worker."""
    program = subprocess.Popen(["sleep", "600"])
    record("began", name, ctx.attempt, program.pid)
    while not get_gate_path(name).exists():
        time.sleep(0.01)
    program.kill()
    program.wait()
    return ctx.attempt


@task(queue="record", retry=QUICK, process=True, lease=SHORT_LEASE)
def wait_in_child(ctx: Ctx, name: str) -> int:
    record("began", name, ctx.attempt)
    while not get_gate_path(name).exists():
        time.sleep(0.01)
    return ctx.attempt
