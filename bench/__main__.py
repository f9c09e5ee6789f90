"""Run benchmarks of Holdfast on a new PostgreSQL server: `python -m bench [parts]`.

Each part prints ratios to a baseline of the same run, or counts such as WAL bytes. `python -m bench.peers`
compares Holdfast with other queues.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from bench.peers.__main__ import SERVER_OPTIONS
from campaign.servers import FaultServer

BENCH_DIR = Path(__file__).parent
PART_COMMANDS = {
    "engine": ["-m", "bench.engine"],
    "costs": ["-m", "bench.costs"],
    "worker": [str(BENCH_DIR / "worker.py")],
    "backlogs": ["-m", "bench.backlogs"],
    "wakeups": ["-m", "bench.wakeups"],
    "idle": ["-m", "bench.idle_workers"],
    "fleet": ["-m", "bench.fleet"],
    "queues": ["-m", "bench.queues"],
    "harness": ["-m", "bench.harness.drive"],
    "api": ["-m", "bench.api"],
    "systems": [str(BENCH_DIR / "systems.py")],
    "bookmarks": ["-m", "bench.bookmarks"],
    "media": ["-m", "bench.media"],
    "clips": ["-m", "bench.clips"],
    "files": [str(BENCH_DIR / "files.py")],
    "dashboard": ["-m", "bench.dashboard"],
}
PARTS_WITH_OWN_SERVER = {"files", "dashboard", "idle"}
PARTS_WITH_TIME_BUDGET = {"harness", "bookmarks", "media", "clips"}


async def run_parts(parts: list[str], folder: Path, minutes: float) -> bool:
    """Run the parts one after the other. Return True if one of them failed."""
    server = FaultServer(folder, SERVER_OPTIONS)
    server.start()
    failed = False
    try:
        await server.wait_until_ready()
        for part in parts:
            print(f"# {part}", flush=True)
            command = [sys.executable, *PART_COMMANDS[part]]
            if part not in PARTS_WITH_OWN_SERVER:
                command.append(server.url.reveal())
            if part in PARTS_WITH_TIME_BUDGET:
                command += ["--minutes", str(minutes)]
            failed |= subprocess.run(command, check=False).returncode != 0  # noqa: ASYNC221
    finally:
        server.destroy()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", help=f"Run these parts: {', '.join(PART_COMMANDS)}. Default: all."
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=5.0,
        help=f"Time for each of {', '.join(sorted(PARTS_WITH_TIME_BUDGET))}. Default: 5.",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else ".") / f"holdfast-bench-{os.getpid()}"
    return int(asyncio.run(run_parts(options.parts or list(PART_COMMANDS), folder, options.minutes)))


if __name__ == "__main__":
    sys.exit(main())
