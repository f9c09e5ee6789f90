"""What a task says about itself, in memory until it is written: cleaned, cut, and bounded in count and bytes.

The first lines are kept as they come. Beyond the bounds only the newest few are, with one line that says how
many were left out: the beginning tells what it did, the end why it stopped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

LEVELS: Final = ("debug", "info", "warning", "error")
MOST_LINES: Final = 1_000
MOST_BYTES: Final = 256 * 1024
LAST_LINES: Final = 50
MESSAGE_CHARACTERS: Final = 2_000
FIELDS: Final = 20
FIELD_CHARACTERS: Final = 500


class Line(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    at: datetime
    level: str
    message: str
    fields: dict[str, Any] | None = None


class Lines:
    """Of one attempt. Any thread may add; one writer takes."""

    def __init__(self) -> None:
        self._waiting: list[Line] = []
        self._last: deque[Line] = deque(maxlen=LAST_LINES)
        self._left_out = 0
        self._count = 0
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._last)

    def add(self, level: str, message: str, fields: Mapping[str, Any]) -> bool:
        """True when nothing was waiting before: the writer must be told."""
        level = level if level in LEVELS else "info"
        text = clean(message, MESSAGE_CHARACTERS)
        kept = {clean(name, 100): _plain(value) for name, value in list(fields.items())[:FIELDS]}
        size = len(text) + sum(len(name) + len(str(value)) for name, value in kept.items()) + 50
        with self._lock:
            first = not self._waiting and not self._last
            self._count += 1
            line = Line(seq=self._count, at=datetime.now(UTC), level=level, message=text, fields=kept or None)
            if self._count <= MOST_LINES and self._bytes + size <= MOST_BYTES:
                self._bytes += size
                self._waiting.append(line)
            else:
                self._bytes = MOST_BYTES  # once full, full: no short line slips in between
                self._left_out += len(self._last) == LAST_LINES
                self._last.append(line)
            return first

    def take(self, *, ended: bool) -> list[Line]:
        """What is to be written now; with the attempt's end also the newest of those beyond the bounds."""
        with self._lock:
            taken, self._waiting = self._waiting, []
            if ended and self._last:
                if self._left_out:
                    taken.append(self._gap(self._last[0]))
                taken.extend(self._last)
                self._last.clear()
            return taken

    def put_back(self, lines: list[Line]) -> None:
        with self._lock:
            self._waiting = [*lines, *self._waiting]

    def _gap(self, after: Line) -> Line:
        message = f"{self._left_out} lines are left out here: an attempt keeps {MOST_LINES}."
        return Line(seq=after.seq - 1, at=after.at, level="warning", message=message)


def clean(text: object, limit: int) -> str:
    """A line must never be the reason a task fails: no NUL, no lone surrogate, and an end."""
    try:
        text = text if isinstance(text, str) else str(text)
    except Exception as problem:
        text = f"({type(problem).__name__} while printing)"
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):  # noqa: PLR0124  (NaN)
        return value
    return clean(value, FIELD_CHARACTERS)
