"""Fork workers from a process that has everything imported, so that starting one takes milliseconds.

Reads one JSON object per line, `{"url": ..., "records": ..., "log": ..., "options": [...]}`, forks a worker
and prints its pid. The forking process has no threads and no event loop, so a fork is like a new process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop  # noqa: F401

import campaign.app
from campaign import spare_processes
from campaign.records import Recorder
from holdfast import telemetry
from holdfast.cli import worker as _  # noqa: F401  (imports what a worker needs)
from holdfast.cli.root import run_command_line

__all__ = ["main"]

SPARE_PROCESS_COUNT = 8  # one becomes the heartbeat process, the others run suspect tasks


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the harness watches the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # forks share the imported modules
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _run_worker(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _run_worker(command: dict[str, object]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    log = os.open(str(command["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["HOLDFAST_DATABASE_URL"] = str(command["url"])
    spare_processes.fork_spares(SPARE_PROCESS_COUNT)
    campaign.app.recorder = Recorder(Path(str(command["records"])))
    telemetry.subscribe(_record_child_death, only=["worker.child_ended"])
    options = [str(option) for option in command["options"]]  # type: ignore[attr-defined]
    code = 1
    try:
        code = run_command_line(["--log-level", "warning", "worker", "campaign.app", *options])
    finally:
        os._exit(code)


def _record_child_death(name: str, fields: Mapping[str, Any]) -> None:
    """Record the death of a child that its worker killed, because a killed child records no end."""
    campaign.app.recorder.write_line("killed", note=str(spare_processes.process_keys.get(fields["pid"], 0)))


if __name__ == "__main__":
    main()
