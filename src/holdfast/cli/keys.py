"""Single key presses of a terminal, without waiting for Enter. Nothing at all where there is no terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from types import TracebackType
from typing import Any

ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b": "escape"}


class Keys:
    """`async with Keys() as keys: key = await keys.next(timeout)`; the terminal is as it was afterwards."""

    def __init__(self) -> None:
        self._pressed: asyncio.Queue[str] = asyncio.Queue()
        self._before: list[Any] | None = None

    async def __aenter__(self) -> Keys:
        if sys.stdin.isatty():
            number = sys.stdin.fileno()
            self._before = termios.tcgetattr(number)
            tty.setcbreak(number)
            asyncio.get_running_loop().add_reader(number, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)

    @property
    def there(self) -> bool:
        return self._before is not None

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            text = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not text:  # the terminal is gone
                asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
                self._pressed.put_nowait("end")
            for key in [text] if text in ARROWS else text:
                self._pressed.put_nowait(ARROWS.get(key, key))

    async def next(self, within: float) -> str | None:
        """The next key, or None when none was pressed in time."""
        try:
            async with asyncio.timeout(within):
                return await self._pressed.get()
        except TimeoutError:
            return None
