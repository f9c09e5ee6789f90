"""What the processes of a run wrote down: one file per process, one JSON array a line, appended in one write.

A process that is killed loses nothing it has written, and at most the line it was writing. Times are of
CLOCK_MONOTONIC, which all processes of one machine share. A process is known by its life, not by its pid:
those are given out again after some thousand others.
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
    life: int
    what: str
    task: str = ""
    attempt: int = 0
    note: str = ""
    nonce: int = 0


def life_of(pid: int) -> int:
    """A number no other process has: the pid and when the system started it. 0 when it is gone."""
    try:
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0
    return (started << 22) + pid


class Recorder:
    """Appends lines to `<folder>/<life>.rec`. Opens its file at the first line, so a fork gets its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._life = 0
        self._file = -1

    def write(self, what: str, task: str = "", attempt: int = 0, note: str = "", nonce: int = 0) -> None:
        pid = os.getpid()
        if pid != self._pid:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._pid, self._life = pid, life_of(pid)
            self._file = os.open(self._folder / f"{self._life}.rec", flags, 0o644)
        line = Line(time.monotonic_ns(), self._life, what, task, attempt, note, nonce)
        os.write(self._file, msgspec.json.encode(line) + b"\n")


@dataclass(frozen=True)
class Execution:
    """One run of a handler, from its first line to its last, or to the death of its process."""

    task: str
    attempt: int
    life: int
    began: int
    ended: int
    how: str  # "end", "stop" (it was cancelled), "death" or "open"
    key: str
    nonce: int = 0


def lines(folder: Path) -> Iterator[Line]:
    for path in folder.glob("*.rec"):
        for raw in path.read_bytes().split(b"\n"):
            try:
                yield msgspec.json.decode(raw, type=Line)
            except msgspec.DecodeError:
                continue  # the line that a kill cut off, or the end of the file


def executions(recorded: list[Line], now: int | None = None) -> list[Execution]:
    """Pair beginnings with ends; a process that was killed ends what it ran."""
    deaths: dict[int, int] = {}
    for line in recorded:
        if line.what == "killed":  # noted by whoever saw it, perhaps by two
            deaths[int(line.note)] = min(line.at, deaths.get(int(line.note), line.at))
    ends = {(e.life, e.task, e.attempt, e.nonce): e for e in recorded if e.what in {"end", "stop"}}
    latest = now if now is not None else max((line.at for line in recorded), default=0)
    found: list[Execution] = []
    for line in recorded:
        if line.what != "begin":
            continue
        end = ends.get((line.life, line.task, line.attempt, line.nonce))
        if end is not None:
            ended, how = end.at, end.what
        elif line.life in deaths:
            ended, how = deaths[line.life], "death"
        else:
            ended, how = latest, "open"
        found.append(
            Execution(line.task, line.attempt, line.life, line.at, ended, how, line.note, line.nonce)
        )
    return sorted(found, key=lambda execution: execution.began)
