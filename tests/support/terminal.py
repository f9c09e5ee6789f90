"""A program in a terminal of its own: what it shows, and keys that are pressed."""

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

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r")


class Terminal:
    """`holdfast ...` on a pseudo-terminal of 160 by 50. `text` is all it has written, without its colours."""

    def __init__(self, *words: str, environ: dict[str, str], folder: Path) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words], stdin=slave, stdout=slave, stderr=slave, cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", **environ}, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._raw = ""

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self._raw)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _take(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        try:
            got = os.read(self._master, 65536)
        except OSError:  # nobody holds the other end any more
            return False
        self._raw += got.decode(errors="replace")
        return bool(got)

    def until(self, pattern: str, *, after: int = 0, within: float = 60) -> re.Match[str]:
        """Waits until the text from `after` on has the pattern."""
        deadline = time.monotonic() + within
        while True:
            found = re.compile(pattern).search(self.text, after)
            if found:
                return found
            assert self._take(0.1) or re.compile(pattern).search(self.text, after), self.text
            assert time.monotonic() < deadline, f"{pattern!r} did not come:\n{self.text}"

    def end(self, within: float = 60) -> int:
        """Waits for its end; the exit code."""
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            self._take(0.1)
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        while self._take(0.1) and select.select([self._master], [], [], 0.1)[0]:
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)
