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
class Workers:
    """Starts `holdfast worker` on the test's database; what tasks did is in `record`."""

    url: Secret
    folder: Path
    app: Path = APP
    started: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    @property
    def record(self) -> Path:
        return self.folder / "record"

    async def start(self, *options: str) -> asyncio.subprocess.Process:
        log = (self.folder / f"worker{len(self.started)}.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "--log-level", "debug", "worker", str(self.app), *options,
            env={**os.environ, "HOLDFAST_DATABASE_URL": self.url.reveal(), "RECORD": str(self.record)},
            stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        self.started.append(process)
        return process

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.record.read_text().splitlines()] if self.record.exists() else []

    def seen(self, *words: object) -> bool:
        """Whether a task wrote these words, whatever process it ran in."""
        return any(line[1:] == [str(word) for word in words] for line in self.lines())

    def allow(self, name: str) -> None:
        """Let the tasks go on that wait for this name."""
        (self.folder / name).touch()
