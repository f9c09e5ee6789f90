"""Run `holdfast` in a pseudo-terminal, press keys and read what it prints."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ESCAPE_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r")


class Terminal:
    """`holdfast ...` on a pseudo-terminal of 160 by 50 characters. `text` is its output without colours."""

    def __init__(
        self, *words: str, environ: dict[str, str], folder: Path, program: str | None = None
    ) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        start = [program] if program else [sys.executable, "-m", "holdfast"]
        self.process = subprocess.Popen(
            [*start, *words], stdin=slave, stdout=slave, stderr=slave, cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", **environ}, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._raw = ""

    @property
    def text(self) -> str:
        return ESCAPE_SEQUENCES.sub("", self._raw)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _read_output(self, seconds: float) -> bool:
        """Read output for at most this time. Return False if the program has closed the terminal."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self._raw += chunk.decode(errors="replace")
        return bool(chunk)

    def wait_for_text(self, pattern: str, *, after: int = 0, within: float = 60) -> re.Match[str]:
        """Wait until the text after the position `after` matches the pattern, and return the match."""
        deadline = time.monotonic() + within
        while True:
            match = re.compile(pattern).search(self.text, after)
            if match:
                return match
            assert self._read_output(0.1) or re.compile(pattern).search(self.text, after), self.text
            assert time.monotonic() < deadline, f"{pattern!r} was not printed:\n{self.text}"

    def wait_for_end(self, within: float = 60) -> int:
        """Wait until the program ends and return its exit code."""
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            self._read_output(0.1)
            assert time.monotonic() < deadline, f"the program does not end:\n{self.text}"
        while self._read_output(0.1) and select.select([self._master], [], [], 0.1)[0]:
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)
