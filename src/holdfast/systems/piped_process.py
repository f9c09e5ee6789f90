"""A child process that is started in one step, so that no cancellation can come in between.

`asyncio.create_subprocess_exec` waits for its pipes after the process was started. If the event loop cancels
all its tasks in that moment, as it does when a program ends, CPython waits for the process for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Literal

POLL_INTERVAL_S = 0.05
MAX_LINE_BYTES = 1024 * 1024


class PipedProcess:
    """A process of its own session, whose standard input is a pipe.

    `reads` says which of its outputs is a pipe, too. The other one is discarded.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path | None = None,
        pass_fds: Sequence[int] = (),
        reads: Literal["stdout", "stderr"] = "stderr",
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if reads == "stdout" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if reads == "stderr" else subprocess.DEVNULL,
            pass_fds=pass_fds,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended the process. None if it runs."""
        return self._process.returncode

    @property
    def output(self) -> IO[bytes]:
        """The reading end of the output that is a pipe."""
        pipe = self._process.stdout or self._process.stderr
        assert pipe is not None  # noqa: S101  (opened above)
        return pipe

    async def open_input(self) -> asyncio.WriteTransport:
        """Return a transport that writes to the standard input. It owns the pipe: close it."""
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(
            asyncio.BaseProtocol, self._process.stdin
        )
        return transport

    def close_input(self) -> None:
        """Close the standard input, which tells the process to end."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        """Send SIGKILL. An ended process is left alone."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        if hasattr(os, "pidfd_open") and self._process.poll() is None:
            await self._wait_for_descriptor()
        while (exit_code := self._process.poll()) is None:  # noqa: ASYNC110  (other systems have no event)
            await asyncio.sleep(POLL_INTERVAL_S)
        return exit_code

    async def _wait_for_descriptor(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        descriptor = os.pidfd_open(self._process.pid)  # readable when the process has ended
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


@asynccontextmanager
async def open_pipe_reader(pipe: IO[bytes]) -> AsyncGenerator[asyncio.StreamReader]:
    """Read a pipe, and close it at the end of the block."""
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        yield reader
    finally:
        transport.close()
