"""`python -m bench.peers [names] [--scale 0.1]`: enqueue, drain and wake up, side by side on one server.

Every peer gets a database of its own on the same server and the same steps in turn. Rates are compared with
the best of the others in the same run; where Holdfast loses, the table says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

import asyncpg

from bench.peers.peers import ADAPTERS, PEERS, ROOT, Entry
from campaign.servers import Server
from holdfast.engine import scratch

OPTIONS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "synchronous_commit": "on", "fsync": "on"}


class Trial:
    """One peer: its database, and its adapter as a process."""

    def __init__(self, entry: Entry, server: Server, environments: Path) -> None:
        self.entry = entry
        self.database = "bench_" + entry.name.replace("-", "_")
        self._server = server
        self._command = entry.command(environments)
        self.dsn = scratch.on_database(server.url, self.database).reveal()
        self._environment = {**os.environ, "PEER_DSN": self.dsn, "PYTHONPATH": f"{ADAPTERS}:{ROOT}"}

    async def make(self) -> None:
        admin = await asyncpg.connect(self._server.url.reveal())
        await admin.execute(f"create database {self.database}")
        await admin.close()
        self.run("install")

    def run(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [*self._command, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.entry.name} {words}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, "work"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @staticmethod
    def stop(worker: subprocess.Popen[str]) -> dict[str, Any]:
        worker.terminate()
        said = worker.communicate(timeout=60)[0].strip()
        return json.loads(said.splitlines()[-1]) if said else {"handled": 0, "waits_ms": []}


async def drain(trial: Trial, jobs: int, workers: int) -> float:
    """Jobs a second from the first that is gone to the last; starting the process does not count."""
    trial.run("bulk", str(jobs))
    connection = await asyncpg.connect(trial.dsn)
    processes = [trial.start() for _ in range(workers)]
    try:
        began, done_at_start, left = None, 0, jobs
        deadline = time.monotonic() + 600
        while left:
            left = await connection.fetchval(trial.entry.left)
            if began is None and left < jobs:
                began, done_at_start = time.perf_counter(), jobs - left
            if time.monotonic() > deadline:
                raise TimeoutError(f"{trial.entry.name}: {left} of {jobs} left")
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - (began or 0)
    finally:
        for process in processes:
            trial.stop(process)
        await connection.close()
    return (jobs - done_at_start) / max(seconds, 1e-9)


async def wake_up(trial: Trial, jobs: int) -> tuple[float, float]:
    """Milliseconds from enqueue to handler with an idle worker: median and 99th of a hundred."""
    worker = trial.start()
    await asyncio.sleep(3)
    trial.run("paced", str(jobs))
    await asyncio.sleep(2)
    waits = sorted(trial.stop(worker)["waits_ms"])
    if len(waits) < 2:
        return float("nan"), float("nan")
    cuts = quantiles(waits, n=100)
    return cuts[49], cuts[98]


async def measure(trial: Trial, scale: float) -> dict[str, float]:
    await trial.make()
    single, bulk = int(1000 * scale), int(20_000 * scale)
    result = {
        "enqueue one by one": single / trial.run("one", str(single))["seconds"],
        "enqueue bulk": bulk / trial.run("bulk", str(bulk))["seconds"],
    }
    await emptied(trial)
    jobs = int(trial.entry.jobs * scale)
    result["drain, 1 process"] = await drain(trial, jobs, 1)
    result["drain, 2 processes"] = await drain(trial, jobs, 2)
    result["wake-up p50 ms"], result["wake-up p99 ms"] = await wake_up(trial, max(int(100 * scale), 20))
    return result


async def emptied(trial: Trial) -> None:
    """Let a worker take what the enqueueing left, so that a drain begins with a known number."""
    connection = await asyncpg.connect(trial.dsn)
    worker = trial.start()
    deadline = time.monotonic() + 600
    while await connection.fetchval(trial.entry.left):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{trial.entry.name} did not finish")
        await asyncio.sleep(0.05)
    trial.stop(worker)
    await connection.close()


def table(results: dict[str, dict[str, float]]) -> str:
    columns = list(next(iter(results.values())))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, result in results.items():
        lines.append(f"| {name} | " + " | ".join(f"{result[column]:,.1f}" for column in columns) + " |")
    others = {name: result for name, result in results.items() if name not in {"holdfast", "pgmq"}}
    if "holdfast" in results and others:
        ratios = []
        for column in columns:
            lower = column.endswith("ms")
            best = (min if lower else max)(result[column] for result in others.values())
            ours = results["holdfast"][column]
            ratios.append(f"{best / ours if lower else ours / best:.2f}")
        lines.append("| **Holdfast against the best job queue** | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


async def play(names: list[str], scale: float, folder: Path) -> dict[str, dict[str, float]]:
    environments = ROOT / ".bench"
    results: dict[str, dict[str, float]] = {}
    server = Server(folder, OPTIONS)
    server.start()
    try:
        await server.ready()
        for name in names:
            entry = PEERS[name]
            try:
                entry.prepare(environments)
                results[name] = await measure(Trial(entry, server, environments), scale)
            except (RuntimeError, OSError, TimeoutError, subprocess.SubprocessError) as problem:
                print(f"{name}: not measured: {problem}", flush=True)
                continue
            print(f"{name}: " + ", ".join(f"{k} {v:,.1f}" for k, v in results[name].items()), flush=True)
    finally:
        server.destroy()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PEERS)}; all if none are given")
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of the usual numbers of jobs")
    parser.add_argument("--report", type=Path, default=None, help="write the table to this file")
    said = parser.parse_args()
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else ".") / f"holdfast-bench-{os.getpid()}"
    results = asyncio.run(play(said.names or list(PEERS), said.scale, folder))
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    head = f"{when}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    text = (
        f"{head}; jobs a second unless a column says ms.\n\n{table(results)}\n"
        if results
        else "nothing measured\n"
    )
    print(text)
    if said.report:
        said.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
