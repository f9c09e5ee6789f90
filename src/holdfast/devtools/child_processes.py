"""Child processes of `dev` and `demo`: started together, stopped together, never left behind.

A child is given a pipe as standard input and stops when it closes (`--attached`): however the parent
dies, the kernel closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import HoldfastError

GRACE = 30.0
SKIPPED = {"node_modules", "site-packages", "venv"}


@dataclass
class Child:
    """One `holdfast ...` process. Its standard error goes to `log`, its name into error messages."""

    name: str
    arguments: list[str]
    log: Path
    process: asyncio.subprocess.Process | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])  # besides our own

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast",
                *self.arguments,
                "--attached",
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},  # house: environment (passed on, not read)
                # A Ctrl-C in the terminal reaches only us; the children are then stopped in order.
                start_new_session=True,
            )

    async def stop(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def kill(self) -> None:
        """As the kernel does when memory is out: at once, without a goodbye."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def check(self) -> None:
        """Raise when it ended although nobody stopped it."""
        if self.process is not None and self.process.returncode is not None:
            raise HoldfastError(
                f"The {self.name} ended by itself ({self.process.returncode}): {self.last_words()}",
                fix=f"The whole story is in {self.log}.",
            )

    def last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it said nothing"])[-1]


def interruption() -> asyncio.Event:
    """Set by Ctrl-C and by TERM."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    return interrupted


def changed(folders: list[Path]) -> Iterator[set[str]]:
    """At each step, the Python files that changed since the step before."""
    seen = _stamps(folders)
    while True:
        now = _stamps(folders)
        yield {path for path in now.keys() | seen.keys() if now.get(path) != seen.get(path)}
        seen = now


def _stamps(folders: list[Path]) -> dict[str, int]:
    stamps: dict[str, int] = {}
    for folder in folders:
        for place, below, names in os.walk(folder):
            # Environments, caches and our own home are large and not the user's code.
            below[:] = [name for name in below if not name.startswith((".", "__")) and name not in SKIPPED]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(place, name)  # noqa: PTH118  (thousands of times, twice a second)
                    with contextlib.suppress(OSError):
                        stamps[path] = os.stat(path).st_mtime_ns  # noqa: PTH116
    return stamps
