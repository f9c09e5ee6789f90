"""Real worker processes, started and ended by the tests."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.settings import Secret

APP = Path(__file__).with_name("recorder_app.py")


@dataclass
class WorkerProcesses:
    """Worker processes on the test's database. Tasks append lines to the file `record`."""

    url: Secret
    folder: Path
    app: Path = APP
    log_level: str = "debug"
    started: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    @property
    def record(self) -> Path:
        return self.folder / "record"

    async def start(self, *options: str) -> asyncio.subprocess.Process:
        log = (self.folder / f"worker{len(self.started)}.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "--log-level", self.log_level,
            "worker", str(self.app), *options,
            env={**os.environ, "HOLDFAST_DATABASE_URL": self.url.reveal(), "RECORD": str(self.record)},
            stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        self.started.append(process)
        return process

    async def stop_all(self) -> None:
        """End the processes as a deployment does, and wait for them."""
        for process in self.started:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    def read_record_lines(self) -> list[list[str]]:
        return [line.split() for line in self.record.read_text().splitlines()] if self.record.exists() else []

    def has_recorded(self, *words: object) -> bool:
        """Whether a task has appended a line with these words to the record."""
        return any(line[1:] == [str(word) for word in words] for line in self.read_record_lines())

    def open_gate(self, name: str) -> None:
        """Let tasks continue that wait for the gate `name`."""
        (self.folder / name).touch()
