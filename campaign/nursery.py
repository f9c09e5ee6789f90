"""Forks workers from a process that has everything imported, so that starting one costs milliseconds.

Reads one JSON object a line: `{"url": ..., "records": ..., "log": ..., "options": [...]}` forks a worker and
answers with its pid. It has no threads and no loop of its own; what it forks is as fresh as a new process.
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
from campaign import spares
from campaign.records import Recorder
from holdfast import telemetry
from holdfast.cli import worker as _  # noqa: F401  (what a worker imports when it starts, imported once)
from holdfast.cli.root import run

__all__ = ["main"]

SPARES = 8  # one renews leases, the others run suspects


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are nobody's concern here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # what is imported is shared with all that is forked
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _work(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _work(say: dict[str, object]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    log = os.open(str(say["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["HOLDFAST_DATABASE_URL"] = str(say["url"])
    spares.keep(SPARES)
    campaign.app.recorder = Recorder(Path(str(say["records"])))
    telemetry.subscribe(_note_a_death, only=["worker.child_ended"])
    options = [str(word) for word in say["options"]]  # type: ignore[attr-defined]
    code = 1
    try:
        code = run(["--log-level", "warning", "worker", "campaign.app", *options])
    finally:
        os._exit(code)


def _note_a_death(name: str, fields: Mapping[str, Any]) -> None:
    """A worker kills children of its own that do not stop in time: they write down no end themselves."""
    campaign.app.recorder.write("killed", note=str(spares.lives.get(fields["pid"], 0)))


if __name__ == "__main__":
    main()
