"""`python -m bench.peers [names] [--scale 0.1]`: enqueue, drain, idle, wake up, side by side on one server.

Every peer gets a database of its own on the same server and the same steps in turn. Where Holdfast loses, the
table says so. `--write` puts the page and its picture into docs/explain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

import asyncpg

from bench.peers import report
from bench.peers.peers import PEERS, ROOT
from bench.peers.trials import IDLE_SECONDS, Trial
from campaign.servers import Server
from holdfast import settings
from holdfast.engine.embedded import binaries

OPTIONS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "synchronous_commit": "on", "fsync": "on"}
ONE_BY_ONE = 600


async def measure(trial: Trial, scale: float) -> dict[str, float]:
    single, jobs = max(int(ONE_BY_ONE * scale), 20), max(int(trial.entry.jobs * scale), 50)
    result: dict[str, float] = {}

    async def rate(name: str, rate: Awaitable[float]) -> dict[str, float]:
        return {name: await rate}

    await trial.make()
    for what, step in (
        ("one", lambda: rate("enqueue one by one", trial.enqueue("one", single))),
        ("bulk", lambda: rate("enqueue bulk", trial.enqueue("bulk", jobs))),
        ("empty", trial.emptied),
        ("1", lambda: trial.counted(jobs)),
        ("2", lambda: rate("drain, 2 processes", trial.drain(jobs, 2))),
        ("idle", lambda: trial.idle_and_wake_up(max(int(60 * scale), 20))),
    ):
        began = time.monotonic()
        result |= await step() or {}
        print(f"  {trial.entry.name} {what}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return result


async def play(names: list[str], scale: float, folder: Path) -> tuple[report.Results, dict[str, str], str]:
    environments = ROOT / ".bench"
    environments.mkdir(exist_ok=True)
    programs = Path(binaries.choose(settings.load(), None).program("psql")).parent
    results: report.Results = {}
    failed: dict[str, str] = {}
    server = Server(folder, OPTIONS)
    server.start()
    try:
        await server.ready()
        connection = await asyncpg.connect(server.url.reveal())
        version = "PostgreSQL " + (await connection.fetchval("show server_version")).split()[0]
        await connection.close()
        for name in names:
            began, trial = time.monotonic(), None
            try:
                PEERS[name].prepare(environments)
                trial = Trial(PEERS[name], server, environments, programs)
                results[name] = await measure(trial, scale)
                told = ", ".join(f"{what} {value:,.1f}" for what, value in results[name].items())
                print(f"{name} ({time.monotonic() - began:.0f} s): {told}", flush=True)
            except (RuntimeError, OSError, TimeoutError, KeyError, subprocess.SubprocessError) as problem:
                failed[name] = str(problem).strip().splitlines()[-1][:200]
                print(f"{name}: not measured: {problem}", flush=True)
            finally:
                if trial is not None:
                    trial.close()
    finally:
        server.destroy()
    return results, failed, version


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PEERS)}; all if none are given")
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of the usual numbers of jobs")
    parser.add_argument(
        "--write", action="store_true", help="write docs/explain/benchmarks.md and its picture"
    )
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file, too")
    said = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server is ours to end
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else ".") / f"holdfast-bench-{os.getpid()}"
    began, load = time.monotonic(), os.getloadavg()[0]
    results, failed, server = asyncio.run(play(said.names or list(PEERS), said.scale, folder))
    if not results:
        raise SystemExit("nothing measured")
    print(report.table(results))
    if said.json:
        said.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if said.write:
        versions = {name: PEERS[name].version(ROOT / ".bench") for name in results}
        about = {"load": load, "seconds": time.monotonic() - began, "idle": IDLE_SECONDS}
        text = report.page(results, failed, versions, server, about)
        report.write(ROOT / "docs" / "explain", text, report.picture(results))


if __name__ == "__main__":
    main()
