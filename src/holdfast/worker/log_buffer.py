"""Buffer the log lines of an attempt in memory until they are written, bounded in count and bytes.

The first lines are kept. Beyond the bounds only the newest few lines are kept, with one line that says how
many were omitted: the beginning shows what the task did, the end why it stopped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.worker.text_cleaning import clean_text

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
MAX_BUFFERED_LINES: Final = 1_000
MAX_LOG_BUFFER_BYTES: Final = 256 * 1024
MAX_TAIL_LINES: Final = 50
MAX_LOG_MESSAGE_CHARS: Final = 2_000
MAX_LOG_FIELDS: Final = 20
MAX_LOG_FIELD_NAME_CHARS: Final = 100
MAX_LOG_FIELD_VALUE_CHARS: Final = 500


class BufferedLogLine(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    at: datetime
    level: str
    message: str
    fields: dict[str, Any] | None = None


class LogBuffer:
    """The unwritten log lines of one attempt. Any thread may add lines."""

    def __init__(self) -> None:
        self._waiting: list[BufferedLogLine] = []
        self._tail: deque[BufferedLogLine] = deque(maxlen=MAX_TAIL_LINES)
        self._omitted = 0
        self._count = 0
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._tail)

    def add_line(self, level: str, message: str, fields: Mapping[str, Any]) -> bool:
        """Add a log line. Return True if the buffer was empty before."""
        level = level if level in LOG_LEVELS else "info"
        text = clean_text(message, MAX_LOG_MESSAGE_CHARS)
        stored_fields = {
            clean_text(name, MAX_LOG_FIELD_NAME_CHARS): _convert_field_value(value)
            for name, value in list(fields.items())[:MAX_LOG_FIELDS]
        }
        size = len(text) + sum(len(name) + len(str(value)) for name, value in stored_fields.items()) + 50
        with self._lock:
            first = not self._waiting and not self._tail
            self._count += 1
            line = BufferedLogLine(
                seq=self._count, at=datetime.now(UTC), level=level, message=text, fields=stored_fields or None
            )
            if self._count <= MAX_BUFFERED_LINES and self._bytes + size <= MAX_LOG_BUFFER_BYTES:
                self._bytes += size
                self._waiting.append(line)
            else:
                self._bytes = MAX_LOG_BUFFER_BYTES  # once full, no shorter line may follow
                self._omitted += len(self._tail) == MAX_TAIL_LINES
                self._tail.append(line)
            return first

    def take_lines(self, *, ended: bool) -> list[BufferedLogLine]:
        """Remove and return the lines to write.

        At the end of the attempt this includes the newest lines beyond the bounds.
        """
        with self._lock:
            lines, self._waiting = self._waiting, []
            if ended and self._tail:
                if self._omitted:
                    lines.append(self._build_omission_line(self._tail[0]))
                lines.extend(self._tail)
                self._tail.clear()
            return lines

    def put_lines_back(self, lines: list[BufferedLogLine]) -> None:
        with self._lock:
            self._waiting = [*lines, *self._waiting]

    def _build_omission_line(self, after: BufferedLogLine) -> BufferedLogLine:
        message = f"{self._omitted} lines were omitted here: an attempt keeps {MAX_BUFFERED_LINES}."
        return BufferedLogLine(seq=after.seq - 1, at=after.at, level="warning", message=message)


def _convert_field_value(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):  # noqa: PLR0124  (NaN)
        return value
    return clean_text(value, MAX_LOG_FIELD_VALUE_CHARS)
