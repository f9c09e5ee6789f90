"""Child processes of `holdfast dev` and `demo`: started together, stopped together, never left behind.

A child process has a pipe as standard input and stops when the pipe closes (`--exit-with-parent`). The kernel
closes it however the parent process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import HoldfastError

PROCESS_STOP_TIMEOUT_S = 30.0
UNWATCHED_FOLDERS = {"node_modules", "site-packages", "venv"}


@dataclass
class ManagedProcess:
    """A `holdfast` command that runs as a child process and writes its output to the file `log`."""

    name: str
    arguments: list[str]
    log: Path
    process: asyncio.subprocess.Process | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])  # in addition to the parent's
    listener: socket.socket | None = None  # the API serves on this socket of the parent

    async def start(self) -> None:
        inherited = [] if self.listener is None else [self.listener.fileno()]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast",
                *self.arguments,
                "--exit-with-parent",
                *(f"--socket-descriptor={number}" for number in inherited),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                env={**os.environ, **self.environment},  # house: environment (passed on, not read)
                # Ctrl-C in the terminal reaches the parent only, which then stops the children in order.
                start_new_session=True,
            )

    async def stop(self) -> None:
        """Send SIGTERM and wait for the process to end. Send SIGKILL if it does not end in time."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(PROCESS_STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def kill(self) -> None:
        """Send SIGKILL and wait for the process to end."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def check_running(self) -> None:
        """Raise `HoldfastError` if the process exited without being stopped."""
        if self.process is not None and self.process.returncode is not None:
            raise HoldfastError(
                f"The {self.name} exited unexpectedly with code {self.process.returncode}: "
                f"{self.read_last_error()}",
                fix=f"See its log: {self.log}.",
            )

    def read_last_error(self) -> str:
        """Return the last error message in the log file or, if there is none, the last line."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["its log is empty"])[-1]


def create_interrupt_event() -> asyncio.Event:
    """Return an asyncio event that is set on Ctrl-C and on SIGTERM."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    return interrupted


def watch_python_files(folders: list[Path]) -> Iterator[set[str]]:
    """Yield the Python files in `folders` that changed since the previous iteration."""
    previous = _read_modification_times(folders)
    while True:
        current = _read_modification_times(folders)
        yield {path for path in current.keys() | previous.keys() if current.get(path) != previous.get(path)}
        previous = current


def _read_modification_times(folders: list[Path]) -> dict[str, int]:
    times: dict[str, int] = {}
    for root in folders:
        for folder, subfolders, names in os.walk(root):
            # Virtual environments, caches and the folder .holdfast are large and not the user's code.
            subfolders[:] = [
                name
                for name in subfolders
                if not name.startswith((".", "__")) and name not in UNWATCHED_FOLDERS
            ]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118  (thousands of times, twice per second)
                    with contextlib.suppress(OSError):
                        times[path] = os.stat(path).st_mtime_ns  # noqa: PTH116
    return times
