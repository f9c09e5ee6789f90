"""Tasks that misbehave: they hold the GIL, hang, crash and eat memory. Each run appends lines to RECORD."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from process_tree import is_running
from recorder_app import QUICK, record, record_number, wait_for_gate

from holdfast import Ctx, task

__all__ = ["record_number", "wait_for_gate"]

LEASE = timedelta(seconds=2)
MIB = 1 << 20


def get_gate_path(name: str) -> Path:
    return Path(os.environ["RECORD"]).with_name(name)


@task(queue="record", retry=QUICK, lease=LEASE)
async def block_worker(ctx: Ctx, how: str, seconds: float) -> str:
    """Keeps the loop and, as `gil`, every other thread from running."""
    record("began", how, ctx.attempt)
    if how == "gil":
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    elif how == "loop":
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
    else:
        time.sleep(seconds)
    record("ended", how, ctx.attempt)
    return f"attempt {ctx.attempt}"


@task(queue="record", retry=QUICK, lease=timedelta(seconds=120))
async def wait_with_long_lease(ctx: Ctx, name: str) -> int:
    """With a lease so long that nobody would wait for its end."""
    record("began", name, ctx.attempt)
    while not get_gate_path(name).exists():
        await asyncio.sleep(0.01)
    record("ended", name, ctx.attempt)
    return ctx.attempt


@task(queue="record", retries=0, lease=timedelta(seconds=120), timeout=timedelta(seconds=2))
async def hang_in_event_loop(ctx: Ctx, how: str) -> None:
    record("began", "hang_in_event_loop", ctx.attempt)
    if how == "gil":
        ctypes.PyDLL(None).sleep(600)
    time.sleep(600)


@task(queue="record", retries=0, timeout=timedelta(seconds=1))
def hang_in_thread(ctx: Ctx) -> None:
    record("began", "hang_in_thread", ctx.attempt)
    time.sleep(600)


@task(queue="record", retry=QUICK)
async def crash_worker(ctx: Ctx, how: str) -> None:
    """Takes its process with it."""
    record("began", how, ctx.attempt)
    crash_process(how)


@task(queue="record", retry=QUICK, process=True)
def crash_child(ctx: Ctx, how: str) -> None:
    ctx.log("about to die", how=how)
    print("last words")  # noqa: T201
    record("began", how, ctx.attempt)
    crash_process(how)


def crash_process(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segv":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(7)
    elif how == "deep":
        sys.setrecursionlimit(10**9)
        overflow_stack(0)


def overflow_stack(depth: int) -> int:
    return sum(map(overflow_stack, (depth + 1,)))  # through C at every level, so that its stack overflows


@task(queue="record", retry=QUICK, process=True, memory=200 * MIB)
def allocate_memory(ctx: Ctx, mib: int) -> int:
    record("began", "allocate_memory", ctx.attempt)
    eaten = []
    for _ in range(mib):
        eaten.append(bytearray(MIB))
        time.sleep(0.001)
    return len(eaten)


@task(queue="record", retries=0, process=True, timeout=timedelta(seconds=8))
def hang_in_child(ctx: Ctx) -> None:
    record("began", "hang_in_child", ctx.attempt)
    ctypes.PyDLL(None).sleep(600)


@task(queue="record", retry=QUICK, process=True, lease=LEASE)
def wait_in_child(ctx: Ctx, name: str) -> list[int]:
    record("began", name, ctx.attempt)
    while not get_gate_path(name).exists():
        time.sleep(0.01)
    return [os.getpid(), os.getppid()]


@task(queue="record", retry=QUICK, process=True, lease=LEASE)
def hold_gil_in_child(ctx: Ctx, seconds: int) -> str:
    """Holds the GIL of its child process for longer than its lease."""
    record("began", "hold_gil_in_child", ctx.attempt)
    ctypes.PyDLL(None).sleep(seconds)
    return f"attempt {ctx.attempt}"


@task(queue="record", retry=QUICK, process=True, lease=LEASE)
def hold_gil_beside_program(ctx: Ctx) -> list[str]:
    """Start a process and hold the GIL; the next attempt tells which of the two still run."""
    if ctx.attempt == 1:
        helper = subprocess.Popen(["sleep", "600"])
        get_gate_path("first_pids").write_text(f"{os.getpid()} {helper.pid}")
        record("began", "hold_gil_beside_program", ctx.attempt)
        ctypes.PyDLL(None).sleep(600)
    record("began", "hold_gil_beside_program", ctx.attempt)
    return [pid for pid in get_gate_path("first_pids").read_text().split() if is_running(int(pid))]


@task(queue="record", retry=QUICK, process=True)
def terminate_programs(ctx: Ctx) -> list[int]:
    """The processes that it starts end at SIGTERM, although it does not itself."""
    record("began", "terminate_programs", ctx.attempt)
    os.kill(os.getpid(), signal.SIGTERM)
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    exit_codes = [program.wait()]
    for _ in range(20):
        fork = os.fork()
        if fork == 0:
            time.sleep(600)
        os.kill(fork, signal.SIGTERM)  # as early as possible: it must not get lost
        exit_codes.append(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
    return exit_codes


def double(number: int) -> int:
    record("step", number)
    return number * 2


@task(queue="record", retry=QUICK, process=True)
async def use_context_in_child(ctx: Ctx, number: int) -> dict[str, object]:
    """Everything a context can do, from inside a child."""
    ctx.progress(1, 2, phase="half")
    ctx.log("in the child", pid=os.getpid())
    logging.getLogger("app").warning("from the library")
    while not get_gate_path("gate").exists():
        await asyncio.sleep(0.01)
    doubled = await ctx.step("double", double, number)
    child = await ctx.submit(record_number(number))
    return {"doubled": doubled, "child": str(child), "pid": os.getpid(), "attempt": ctx.attempt}


@task(queue="other", retry=QUICK)
async def record_in_other_queue(ctx: Ctx, number: int) -> int:
    record("record_in_other_queue", number, ctx.attempt)
    return number


@task(queue="record", retry=QUICK)
async def sleep_and_record(ctx: Ctx, number: int) -> int:
    """Its line says that it came to its end."""
    await asyncio.sleep(0.01)
    record("sleep_and_record", number, ctx.attempt)
    return number
