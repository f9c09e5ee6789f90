"""`python -m bench [parts]`: what Holdfast does, next to the bare statements, on a server made for it.

Each part prints its figures as ratios of something measured in the same run, or as counted things. The
comparison with other queues is `python -m bench.peers`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from bench.peers.__main__ import OPTIONS
from campaign.servers import FaultServer

HERE = Path(__file__).parent
PARTS = {
    "engine": ["-m", "bench.engine"],
    "worker": [str(HERE / "worker.py")],
    "queues": ["-m", "bench.queues"],
    "api": ["-m", "bench.api"],
    "systems": [str(HERE / "systems.py")],
    "files": [str(HERE / "files.py")],
    "dashboard": [str(HERE / "dashboard.py")],
}
OWN_SERVER = {"files", "dashboard"}


async def run_parts(parts: list[str], folder: Path) -> bool:
    server = FaultServer(folder, OPTIONS)
    server.start()
    failed = False
    try:
        await server.ready()
        for part in parts:
            print(f"# {part}", flush=True)
            command = [sys.executable, *PARTS[part]]
            if part not in OWN_SERVER:
                command.append(server.url.reveal())
            failed |= subprocess.run(command, check=False).returncode != 0  # noqa: ASYNC221
    finally:
        server.destroy()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none are given")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else ".") / f"holdfast-bench-{os.getpid()}"
    return int(asyncio.run(run_parts(options.parts or list(PARTS), folder)))


if __name__ == "__main__":
    sys.exit(main())
