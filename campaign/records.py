"""What the processes of a run wrote down: one file per process, one JSON array a line, appended in one write.

A process that is killed loses nothing it has written, and at most the line it was writing. Times are of
CLOCK_MONOTONIC, which all processes of one machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec


class Line(msgspec.Struct, array_like=True, frozen=True):
    """`what` happened to `task` in attempt `attempt`; `note` is what else there is to say."""

    at: int
    pid: int
    what: str
    task: str = ""
    attempt: int = 0
    note: str = ""


class Recorder:
    """Appends lines to `<folder>/<pid>.rec`. Opens its file at the first line, so a fork gets its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._file = -1

    def write(self, what: str, task: str = "", attempt: int = 0, note: str = "") -> None:
        pid = os.getpid()
        if pid != self._pid:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file, self._pid = os.open(self._folder / f"{pid}.rec", flags, 0o644), pid
        line = Line(time.monotonic_ns(), pid, what, task, attempt, note)
        os.write(self._file, msgspec.json.encode(line) + b"\n")


@dataclass(frozen=True)
class Execution:
    """One run of a handler, from its first line to its last, or to the death of its process."""

    task: str
    attempt: int
    pid: int
    began: int
    ended: int
    how: str  # "end", "stop" (it was cancelled), "death" or "open"
    key: str


def lines(folder: Path) -> Iterator[Line]:
    for path in folder.glob("*.rec"):
        for raw in path.read_bytes().split(b"\n"):
            try:
                yield msgspec.json.decode(raw, type=Line)
            except msgspec.DecodeError:
                continue  # the line that a kill cut off, or the end of the file


def executions(recorded: list[Line], now: int | None = None) -> list[Execution]:
    """Pair beginnings with ends; a process that was killed ends what it ran."""
    deaths = {int(line.note): line.at for line in recorded if line.what == "killed"}
    ends = {(e.pid, e.task, e.attempt): e for e in recorded if e.what in {"end", "stop"}}
    latest = now if now is not None else max((line.at for line in recorded), default=0)
    found: list[Execution] = []
    for line in recorded:
        if line.what != "begin":
            continue
        end = ends.get((line.pid, line.task, line.attempt))
        if end is not None:
            ended, how = end.at, end.what
        elif line.pid in deaths:
            ended, how = deaths[line.pid], "death"
        else:
            ended, how = latest, "open"
        found.append(Execution(line.task, line.attempt, line.pid, line.at, ended, how, line.note))
    return sorted(found, key=lambda execution: execution.began)
