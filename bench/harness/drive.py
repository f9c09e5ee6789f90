"""Drive entries of the public harness by its protocol, by turns, and print what their telemetry says.

    python -m bench.harness.drive [SERVER_URL] [--entries holdfast,pgmq --checkout FOLDER] [--minutes 5]

peak   jobs per second with WORKER_COUNT 16 and 64, while the producer keeps 4,000 jobs waiting (depth-target)
hold   800 jobs per second for --minutes: queue depth, claim latency, completions, and every stall, which is a
       sample with fewer completions than half of the offered rate, with what the server did meanwhile

Every run has a new database. Without SERVER_URL it starts a server with the settings of `bench.peers`.
Entries other than `holdfast` are the folders `<name>-bench` of a checkout of the public harness.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from bench.harness.entries import HarnessEntry, find_entries
from bench.harness.results import RunResult, print_hold_table, print_peak_table
from bench.harness.runs import HarnessRun, RunPlan
from bench.peers.__main__ import SERVER_OPTIONS
from campaign.servers import FaultServer
from holdfast.settings import Secret

PEAK_WORKER_COUNTS = (16, 64)
PEAK_RATE = 50_000  # entries derive sizes of batches from it
TARGET_DEPTH = 4000
HOLD_RATE = 800
HOLD_WORKER_COUNT = 32


async def drive_peaks(server: Secret, entries: list[HarnessEntry], options: argparse.Namespace) -> None:
    results: dict[tuple[str, int], list[RunResult]] = {}
    for number in range(options.rounds):
        for worker_count in PEAK_WORKER_COUNTS:
            for entry in entries if number % 2 == 0 else reversed(entries):
                plan = RunPlan(
                    {
                        "PRODUCER_MODE": "depth-target",
                        "TARGET_DEPTH": str(TARGET_DEPTH),
                        "PRODUCER_RATE": str(PEAK_RATE),
                        "WORKER_COUNT": str(worker_count),
                    },
                    measured_s=options.peak_seconds,
                )
                result = await HarnessRun(server, entry, plan).run()
                results.setdefault((entry.name, worker_count), []).append(result)
                print(f"peak, {worker_count} workers, {entry.name}: {result.describe()}", flush=True)
    print_peak_table(results)


async def drive_holds(server: Secret, entries: list[HarnessEntry], options: argparse.Namespace) -> None:
    results: dict[str, RunResult] = {}
    for entry in entries:
        plan = RunPlan(
            {
                "PRODUCER_MODE": "fixed",
                "PRODUCER_RATE": str(options.rate),
                "WORKER_COUNT": str(HOLD_WORKER_COUNT),
                "SAMPLE_EVERY_S": "1",
            },
            measured_s=options.minutes * 60,
            paced_rate=options.rate,
        )
        results[entry.name] = await HarnessRun(server, entry, plan).run()
        print(f"hold, {options.rate}/s, {entry.name}: {results[entry.name].describe()}", flush=True)
    print_hold_table(results, options.rate)


async def drive_entries(options: argparse.Namespace) -> None:
    entries = find_entries(options.entries.split(","), options.checkout)
    for entry in entries:
        entry.install_packages()
    if options.server is not None:
        await drive_parts(Secret(options.server), entries, options)
        return
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else ".") / f"holdfast-harness-{os.getpid()}"
    server = FaultServer(folder, SERVER_OPTIONS)
    server.start()
    try:
        await server.wait_until_ready()
        await drive_parts(server.url, entries, options)
    finally:
        server.destroy()


async def drive_parts(server: Secret, entries: list[HarnessEntry], options: argparse.Namespace) -> None:
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}", flush=True)
    if "peak" in options.only:
        await drive_peaks(server, entries, options)
    if "hold" in options.only:
        await drive_holds(server, entries, options)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", nargs="?", help="URL of a server. Default: start one.")
    parser.add_argument("--entries", default="holdfast", help="Drive these, by turns. Default: holdfast.")
    parser.add_argument("--checkout", type=Path, help="Folder with a checkout of the public harness.")
    parser.add_argument("--only", default="peak,hold", help="Run these parts. Default: peak,hold.")
    parser.add_argument("--minutes", type=float, default=5.0, help="Hold for this long. Default: 5.")
    parser.add_argument("--rate", type=int, default=HOLD_RATE, help="Hold this rate. Default: 800.")
    parser.add_argument("--rounds", type=int, default=3, help="Measure peaks so often. Default: 3.")
    parser.add_argument("--peak-seconds", type=float, default=20.0, help="Measure a peak for this long.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(drive_entries(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
