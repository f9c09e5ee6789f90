"""Read single key presses from a terminal, without waiting for Enter. Without a terminal, read none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import termios
import tty
from types import TracebackType
from typing import Any

KEY_NAMES_BY_SEQUENCE = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b": "escape",
}

_KEY_PATTERN = re.compile(r"\x1b\[[A-D]|.", re.DOTALL)


class KeyboardInput:
    """Reads single key presses from the terminal, inside an `async with` block.

    Example: `async with KeyboardInput() as keyboard: key = await keyboard.next_key(timeout_s=1)`. On exit the
    terminal has its former mode again.
    """

    def __init__(self) -> None:
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._former_mode: list[Any] | None = None

    async def __aenter__(self) -> KeyboardInput:
        if sys.stdin.isatty():
            descriptor = sys.stdin.fileno()
            self._former_mode = termios.tcgetattr(descriptor)
            tty.setcbreak(descriptor)
            asyncio.get_running_loop().add_reader(descriptor, self._queue_pressed_keys)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._former_mode is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._former_mode)

    @property
    def is_available(self) -> bool:
        """Whether standard input is a terminal, so that key presses can be read."""
        return self._former_mode is not None

    def _queue_pressed_keys(self) -> None:
        with contextlib.suppress(OSError):
            text = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not text:  # the terminal was closed
                asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
                self._keys.put_nowait("end")
            keys: list[str] = _KEY_PATTERN.findall(text)
            for key in keys:  # keys that were pressed quickly arrive together
                self._keys.put_nowait(KEY_NAMES_BY_SEQUENCE.get(key, key))

    async def next_key(self, timeout_s: float) -> str | None:
        """Return the next pressed key, or None if no key is pressed within `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._keys.get()
        except TimeoutError:
            return None
