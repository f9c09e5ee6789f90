"""`python -m campaign`: play runs, judge them, print what happened and the seed that repeats it."""

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
from campaign.arena import NotHereError, arena
from campaign.runs import Run, failover, rules, server, surroundings, work, workers

ALL = (*workers.RUNS, *server.RUNS, *work.RUNS, *rules.RUNS, *surroundings.RUNS, *failover.RUNS)
RUNS: dict[str, Run] = {run.name: run for run in ALL}


async def play(
    run: Run, size: str, seed: int, slack_s: float = 1.0, minutes: float | None = None
) -> dict[str, Any]:
    """One run in an arena of its own; what it did, and everything it broke."""
    began = time.monotonic()
    dose = run.dose(size)
    async with arena(seed, dict(run.options), small_disk=run.small_disk) as ring:
        if minutes is not None:
            ring.until = time.monotonic() + 60 * minutes
        told: dict[str, Any] = {}
        broken: list[str] = []
        try:
            told = await run.play(ring, dose)
        except AssertionError as problem:
            broken.append(str(problem))
        killed = ring.workers_killed
        await ring.stop_workers()
        async with ring.connection() as connection:
            history = await checker.read(
                ring.records, connection, forgets=ring.forgets, slack_s=slack_s, **ring.known
            )
        broken += [str(each) for each in checker.judge(history, *run.rules)]
        log = ring.folder / "workers.log"
        surprises = (
            [line for line in log.read_text().splitlines() if "Traceback" in line] if log.exists() else []
        )
        return {
            "run": run.name,
            "seed": seed,
            "dose": size,
            "seconds": round(time.monotonic() - began, 1),
            "workers killed": killed,
            **checker.summary(history),
            **told,
            "tracebacks in worker logs": len(surprises),
            "broken": broken,
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("runs", nargs="*", help="names of runs; all if none are given")
    parser.add_argument("--dose", choices=("tiny", "short", "full"), default="short")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--report", type=Path, default=None, help="append one JSON object a run to this file")
    parser.add_argument("--slack", type=float, default=1.0, help="seconds beyond the lease to be taken over")
    parser.add_argument("--minutes", type=float, default=None, help="break no more after this, in each run")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--list", action="store_true")
    said = parser.parse_args()
    if said.list:
        for run in RUNS.values():
            print(f"{run.name:12} {run.story}")
        return 0
    seed = said.seed if said.seed is not None else random.SystemRandom().randrange(1 << 31)
    names = said.runs or list(RUNS)
    if said.at_once > 1:
        failed = asyncio.run(side_by_side(names, said.at_once, _words(said, seed)))
    else:
        failed = one_by_one(names, said, seed)
    print(f"seed {seed}: {'FAILED' if failed else 'all promises kept'}", file=sys.stderr)
    return int(failed)


def one_by_one(names: list[str], said: argparse.Namespace, seed: int) -> bool:
    # Asked to stop, clean up: servers and workers are ours to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = False
    for name in names:
        try:
            result = asyncio.run(play(RUNS[name], said.dose, seed, said.slack, said.minutes))
        except NotHereError as reason:
            print(json.dumps({"run": name, "left out": str(reason)}), flush=True)
            continue
        failed |= bool(result["broken"])
        print(json.dumps({**result, "broken": result["broken"][:10]}), flush=True)
        if said.report:
            stamp = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.machine()}
            with said.report.open("a") as file:
                file.write(json.dumps({**stamp, **result}) + "\n")
    return failed


async def side_by_side(names: list[str], at_once: int, words: list[str]) -> bool:
    """Each in a process of its own, the long ones first: most of a run is waiting."""
    turns = asyncio.Semaphore(at_once)
    going: set[asyncio.subprocess.Process] = set()

    async def one(name: str) -> bool:
        async with turns:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "campaign", name, *words, stderr=asyncio.subprocess.PIPE
            )
            going.add(process)
            _, said = await process.communicate()
            going.discard(process)
            if process.returncode:
                print(f"{name}: {said.decode(errors='replace')[-3000:]}", file=sys.stderr, flush=True)
            return process.returncode != 0

    def stop() -> None:
        for process in going:
            process.terminate()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    longest_first = sorted(names, key=lambda name: -RUNS[name].short.faults)
    return any(await asyncio.gather(*(one(name) for name in longest_first)))


def _words(said: argparse.Namespace, seed: int) -> list[str]:
    words = ["--dose", said.dose, "--seed", str(seed), "--slack", str(said.slack)]
    if said.minutes is not None:
        words += ["--minutes", str(said.minutes)]
    return words + (["--report", str(said.report)] if said.report else [])


if __name__ == "__main__":
    sys.exit(main())
