"""Write and read the records of a run: one file per process, one JSON array per line.

A killed process loses at most the line that it was writing. Times come from CLOCK_MONOTONIC, which all
processes of a machine share. A process key identifies a process, because the system reuses pids.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec


class RecordLine(msgspec.Struct, array_like=True, frozen=True):
    """An event of a task in an attempt. `kind` is such as begin, end or killed; `note` holds details."""

    at: int
    process_key: int
    kind: str
    task: str = ""
    attempt: int = 0
    note: str = ""
    nonce: int = 0


def get_process_key(pid: int) -> int:
    """Return a number that identifies a process: its pid and start time. 0 when the process is gone."""
    try:
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0
    return (started << 22) + pid


class Recorder:
    """Append lines to `<folder>/<process_key>.rec`. Opens the file at the first line; a fork gets its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._process_key = 0
        self._file = -1

    def write_line(self, kind: str, task: str = "", attempt: int = 0, note: str = "", nonce: int = 0) -> None:
        pid = os.getpid()
        if pid != self._pid:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._pid, self._process_key = pid, get_process_key(pid)
            self._file = os.open(self._folder / f"{self._process_key}.rec", flags, 0o644)
        line = RecordLine(time.monotonic_ns(), self._process_key, kind, task, attempt, note, nonce)
        os.write(self._file, msgspec.json.encode(line) + b"\n")


@dataclass(frozen=True)
class Execution:
    """One execution of a task, from its first line to its last, or to the death of its process."""

    task: str
    attempt: int
    process_key: int
    began: int
    ended: int
    ending: str  # "end", "stop" (cancelled), "death" or "open" (still running)
    key: str
    nonce: int = 0


def read_record_lines(folder: Path) -> Iterator[RecordLine]:
    for path in folder.glob("*.rec"):
        for raw in path.read_bytes().split(b"\n"):
            try:
                yield msgspec.json.decode(raw, type=RecordLine)
            except msgspec.DecodeError:
                continue  # a kill cut the line off, or the file ends here


def pair_executions(recorded: list[RecordLine], now: int | None = None) -> list[Execution]:
    """Pair beginnings with ends. The death of a process ends its executions."""
    deaths: dict[int, int] = {}
    for line in recorded:
        if line.kind == "killed":  # two observers may have recorded the same death
            deaths[int(line.note)] = min(line.at, deaths.get(int(line.note), line.at))
    ends = {(e.process_key, e.task, e.attempt, e.nonce): e for e in recorded if e.kind in {"end", "stop"}}
    latest = now if now is not None else max((line.at for line in recorded), default=0)
    pairs: list[Execution] = []
    for line in recorded:
        if line.kind != "begin":
            continue
        end = ends.get((line.process_key, line.task, line.attempt, line.nonce))
        if end is not None:
            ended, how = end.at, end.kind
        elif line.process_key in deaths:
            ended, how = deaths[line.process_key], "death"
        else:
            ended, how = latest, "open"
        pairs.append(
            Execution(line.task, line.attempt, line.process_key, line.at, ended, how, line.note, line.nonce)
        )
    return sorted(pairs, key=lambda execution: execution.began)
