"""Execute fault runs and check the promises: `python -m campaign [runs]`. Prints the seed of the runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from campaign import checker
from campaign.environment import open_environment
from campaign.processes import UnsupportedMachineError
from campaign.runs import (
    FaultRun,
    clips,
    failover,
    guarantees,
    machine_faults,
    media,
    patroni,
    recovery,
    server_faults,
    shards,
    wakeups,
    worker_faults,
    workloads,
)

ALL_RUNS = (
    *worker_faults.FAULT_RUNS,
    *server_faults.FAULT_RUNS,
    *workloads.FAULT_RUNS,
    *wakeups.FAULT_RUNS,
    *guarantees.FAULT_RUNS,
    *machine_faults.FAULT_RUNS,
    *failover.FAULT_RUNS,
    *patroni.FAULT_RUNS,
    *shards.FAULT_RUNS,
    *recovery.FAULT_RUNS,
    *media.FAULT_RUNS,
    *clips.FAULT_RUNS,
)
RUNS_BY_NAME: dict[str, FaultRun] = {run.name: run for run in ALL_RUNS}


async def execute_run(
    run: FaultRun, size: str, seed: int, slack_s: float = 1.0, minutes: float | None = None
) -> dict[str, Any]:
    """Execute one run in its own environment. Return its counts and the violated promises."""
    started_at = time.monotonic()
    dose = run.get_dose(size)
    async with open_environment(seed, dict(run.options), small_disk=run.small_disk) as env:
        if minutes is not None:
            env.fault_deadline = time.monotonic() + 60 * minutes
        facts: dict[str, Any] = {}
        broken: list[str] = []
        try:
            facts = await run.execute(env, dose)
        except AssertionError as error:
            broken.append(str(error))
        killed = env.workers_killed
        await env.stop_workers()
        async with env.open_connection() as connection:
            history = await checker.read_history(
                env.records_folder,
                connection,
                may_lose_acknowledged=env.may_lose_acknowledged,
                slack_s=slack_s,
                **env.checker_inputs,
            )
        broken += [str(violation) for violation in checker.find_violations(history, *run.rules)]
        log = env.folder / "workers.log"
        tracebacks = (
            [line for line in log.read_text().splitlines() if "Traceback" in line] if log.exists() else []
        )
        return {
            "run": run.name,
            "seed": seed,
            "dose": size,
            "seconds": round(time.monotonic() - started_at, 1),
            "workers killed": killed,
            **checker.summarize_history(history),
            **facts,
            "tracebacks in worker logs": len(tracebacks),
            "broken": broken,
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("runs", nargs="*", help="Execute these runs. Default: all.")
    parser.add_argument(
        "--dose",
        choices=("tiny", "short", "full"),
        default="short",
        help="Choose the number of tasks and faults. Default: short.",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="Repeat the random choices of this seed. Default: random."
    )
    parser.add_argument(
        "--report", type=Path, default=None, help="Append one JSON object per run to this file."
    )
    parser.add_argument(
        "--slack",
        type=float,
        default=1.0,
        help="Allow a takeover this many seconds after the lease ends; inf disables the check. Default: 1.",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=None,
        help="Inject no faults after this many minutes of a run. Default: no limit.",
    )
    parser.add_argument(
        "--parallel", type=int, default=1, help="Execute this many runs in parallel. Default: 1."
    )
    parser.add_argument("--list", action="store_true", help="List the runs and exit.")
    options = parser.parse_args()
    if options.list:
        for run in RUNS_BY_NAME.values():
            print(f"{run.name:12} {run.description}")
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    names = options.runs or list(RUNS_BY_NAME)
    if options.parallel > 1:
        failed = asyncio.run(
            execute_in_parallel(names, options.parallel, _build_child_arguments(options, seed))
        )
    else:
        failed = execute_one_by_one(names, options, seed)
    print(f"seed {seed}: {'FAILED' if failed else 'all promises kept'}", file=sys.stderr)
    return int(failed)


def execute_one_by_one(names: list[str], options: argparse.Namespace, seed: int) -> bool:
    """Execute the runs in this process. Return True if a promise was broken."""
    # SIGTERM must clean up, because the run owns its servers and workers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = False
    for name in names:
        try:
            result = asyncio.run(
                execute_run(RUNS_BY_NAME[name], options.dose, seed, options.slack, options.minutes)
            )
        except UnsupportedMachineError as reason:
            print(json.dumps({"run": name, "left out": str(reason)}), flush=True)
            continue
        failed |= bool(result["broken"])
        print(json.dumps({**result, "broken": result["broken"][:10]}), flush=True)
        if options.report:
            stamp = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.machine()}
            with options.report.open("a") as file:
                file.write(json.dumps({**stamp, **result}) + "\n")
    return failed


async def execute_in_parallel(names: list[str], parallel: int, arguments: list[str]) -> bool:
    """Execute each run in its own process, longest first. Return True if a promise was broken."""
    slots = asyncio.Semaphore(parallel)
    processes: set[asyncio.subprocess.Process] = set()

    async def execute_in_child(name: str) -> bool:
        async with slots:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "campaign", name, *arguments, stderr=asyncio.subprocess.PIPE
            )
            processes.add(process)
            _, stderr = await process.communicate()
            processes.discard(process)
            if process.returncode:
                print(f"{name}: {stderr.decode(errors='replace')[-3000:]}", file=sys.stderr, flush=True)
            return process.returncode != 0

    def stop_children() -> None:
        for process in processes:
            process.terminate()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop_children)
    longest_first = sorted(names, key=lambda name: -RUNS_BY_NAME[name].short.faults)
    return any(await asyncio.gather(*(execute_in_child(name) for name in longest_first)))


def _build_child_arguments(options: argparse.Namespace, seed: int) -> list[str]:
    arguments = ["--dose", options.dose, "--seed", str(seed), "--slack", str(options.slack)]
    if options.minutes is not None:
        arguments += ["--minutes", str(options.minutes)]
    return arguments + (["--report", str(options.report)] if options.report else [])


if __name__ == "__main__":
    sys.exit(main())
