"""Format the tracebacks of failed tasks as Python does, at a small part of the cost.

In an outage thousands of tasks fail at the same places. Formatting the frames of a traceback takes hundreds
of microseconds, because Python parses each source line again to mark the failing expression. So the text of
the frames is kept by the places in the code that it shows.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import Final

CodePlace = tuple[CodeType, int]  # a code object and the instruction in it

MAX_CACHED_STACKS: Final = 200
MAX_CACHED_FRAMES: Final = 50  # of one traceback; longer ones are deep recursions, which differ
_HEADER: Final = "Traceback (most recent call last):\n"
_CAUSE_SEPARATOR: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT_SEPARATOR: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"


def format_traceback(error: BaseException) -> str:
    """Return what `traceback.format_exception` prints, with the exceptions that caused this one."""
    parts: list[str] = []
    for exception, separator in _walk_causes(error):
        text = _format_one(exception)
        if text is None:
            return "".join(traceback.format_exception(error))
        parts.append(text + separator)
    return "".join(reversed(parts))


def find_last_frame(error: BaseException) -> tuple[str, str] | None:
    """Return the file name and the function in which an exception was raised, or None if it is unknown."""
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return code.co_filename, code.co_name


def _walk_causes(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield an exception and those that led to it, each with the text between it and the one before."""
    seen: set[int] = set()
    separator = ""
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current, separator
        if current.__cause__ is not None:
            current, separator = current.__cause__, _CAUSE_SEPARATOR
        elif current.__context__ is not None and not current.__suppress_context__:
            current, separator = current.__context__, _CONTEXT_SEPARATOR
        else:
            current = None


def _walk_places(trace: TracebackType | None) -> Iterator[CodePlace]:
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lasti
        trace = trace.tb_next


def _format_one(error: BaseException) -> str | None:
    """Return the text of one exception without its causes, or None if only Python can format it."""
    if isinstance(error, BaseExceptionGroup):
        return None
    places = tuple(_walk_places(error.__traceback__))
    if len(places) > MAX_CACHED_FRAMES:
        return None
    last_lines = "".join(traceback.format_exception_only(error))
    if not places:
        return last_lines
    frames = _frames.get(places)
    if frames is None:
        frames = _frames.format(places, error.__traceback__)
    return f"{_HEADER}{frames}{last_lines}"


class _FrameTexts:
    """The texts of the frames of tracebacks, by the places in the code. The oldest is forgotten first."""

    def __init__(self) -> None:
        self._texts: dict[tuple[CodePlace, ...], str] = {}

    def get(self, places: tuple[CodePlace, ...]) -> str | None:
        return self._texts.get(places)

    def format(self, places: tuple[CodePlace, ...], trace: TracebackType | None) -> str:
        text = "".join(traceback.format_tb(trace))
        if len(self._texts) >= MAX_CACHED_STACKS:
            self._texts.pop(next(iter(self._texts)), None)
        self._texts[places] = text
        return text


_frames: Final = _FrameTexts()
