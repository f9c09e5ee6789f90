"""Log lines in memory: cleaned, cut, bounded, and never a reason to fail."""

from __future__ import annotations

import threading
from typing import Any

from holdfast.worker.log_buffer import (
    MAX_BUFFERED_LINES,
    MAX_LOG_BUFFER_BYTES,
    MAX_LOG_MESSAGE_CHARS,
    MAX_TAIL_LINES,
    LogBuffer,
)


def read_messages(lines: LogBuffer, *, ended: bool = True) -> list[str]:
    return [line.message for line in lines.take_lines(ended=ended)]


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no")


def test_characters_that_the_database_cannot_store_are_replaced() -> None:
    lines = LogBuffer()
    odd: Any = Unprintable()
    lines.add_line(
        "info", "a\0b\ud800" + "x" * 10_000, {"n": float("nan"), "big": 2**80, "odd": odd, "ok": 1.5}
    )
    lines.add_line("loud", odd, {"k\0": "v\0"})
    first, second = lines.take_lines(ended=False)
    assert first.message.startswith("a\N{REPLACEMENT CHARACTER}b?xxx")
    assert len(first.message) == MAX_LOG_MESSAGE_CHARS
    assert first.fields == {"n": "nan", "big": str(2**80), "odd": "(ValueError while printing)", "ok": 1.5}
    assert (second.level, second.message) == ("info", "(ValueError while printing)")
    assert second.fields == {"k\N{REPLACEMENT CHARACTER}": "v\N{REPLACEMENT CHARACTER}"}


def test_the_first_and_the_last_lines_are_kept_with_a_note_about_the_gap() -> None:
    lines = LogBuffer()
    for n in range(MAX_BUFFERED_LINES + 500):
        lines.add_line("info", str(n), {})
        if n == 10:
            assert len(read_messages(lines, ended=False)) == 11
    kept = read_messages(lines)
    assert kept[:2] == ["11", "12"]
    gap = kept.index(
        f"{500 - MAX_TAIL_LINES} lines were omitted here: an attempt keeps {MAX_BUFFERED_LINES}."
    )
    assert kept[gap - 1] == str(MAX_BUFFERED_LINES - 1)
    assert kept[gap + 1 :] == [
        str(n) for n in range(MAX_BUFFERED_LINES + 500 - MAX_TAIL_LINES, MAX_BUFFERED_LINES + 500)
    ]


def test_the_number_of_bytes_is_limited() -> None:
    lines = LogBuffer()
    for _ in range(1_000):
        lines.add_line("info", "x" * 2_000, {"y": "z" * 400})
    assert len(lines) < 200
    assert sum(len(message) for message in read_messages(lines)) < MAX_LOG_BUFFER_BYTES * 1.5


def test_line_numbers_rise_across_threads() -> None:
    lines = LogBuffer()

    def speak() -> None:
        for _ in range(100):
            lines.add_line("info", "x", {})

    threads = [threading.Thread(target=speak) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.seq for line in lines.take_lines(ended=True)] == list(range(1, 401))


def test_unwritten_lines_are_sent_first() -> None:
    lines = LogBuffer()
    lines.add_line("info", "a", {})
    taken = lines.take_lines(ended=False)
    lines.add_line("info", "b", {})
    lines.put_lines_back(taken)
    assert read_messages(lines) == ["a", "b"]
