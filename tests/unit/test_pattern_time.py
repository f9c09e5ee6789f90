"""The time that a regular expression of the package takes grows in proportion to the length of a text.

Users choose many of these texts: with a pattern that is quadratic, one of them stops a server. The patterns
are all those that modules keep. Each is tried with texts that are one piece repeated, a piece of its own
source included, which makes a pattern start, or go back, at every character.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator

import pytest

import holdfast

SHORT_CHARS, LONG_CHARS = 1_000, 16_000  # 16 times as long: 256 times the time if it is quadratic
FAST_ENOUGH_SECONDS = 0.01
MAX_GROWTH = 80
PIECES = [
    "A",
    "a1",
    " ",
    "\n",
    "\t ",
    "/",
    "./",
    "://",
    "a:",
    "@",
    "=",
    "-",
    "_",
    ".",
    "<",
    "<a ",
    "(",
    "[",
    '"',
    "\\",
    "%",
    "…",
]
WORD_PATTERN = re.compile(r"[a-z]{3,12}")


def iterate_patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Iterate over the compiled patterns of all modules that can be imported here, each once."""
    seen: set[str] = set()
    for module in pkgutil.walk_packages(holdfast.__path__, f"{holdfast.__name__}."):
        if "templates" in module.name or module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str) and value.pattern not in seen:
                seen.add(value.pattern)
                yield f"{module.name}.{name}", value


def measure(pattern: re.Pattern[str], text: str) -> float:
    started = time.thread_time()
    for _ in pattern.finditer(text):
        pass
    return time.thread_time() - started


PATTERNS = dict(iterate_patterns())


def test_the_patterns_of_the_package_are_found() -> None:
    assert len(PATTERNS) > 30
    assert "holdfast.redaction._ASSIGNED_SECRET_PATTERN" in PATTERNS


@pytest.mark.parametrize("name", PATTERNS)
def test_a_long_text_takes_time_in_proportion(name: str) -> None:
    pattern = PATTERNS[name]
    for piece in [*PIECES, *WORD_PATTERN.findall(pattern.pattern.lower())]:
        short = measure(pattern, (piece * SHORT_CHARS)[:SHORT_CHARS] + "!")
        long = measure(pattern, (piece * LONG_CHARS)[:LONG_CHARS] + "!") if short > 2e-5 else 0.0
        assert long < max(FAST_ENOUGH_SECONDS, MAX_GROWTH * short), f"{name} with {piece!r}: {short}, {long}"


def test_a_quadratic_pattern_is_found() -> None:
    quadratic = re.compile(r"[\w-]*token")
    short, long = (measure(quadratic, "A" * length) for length in (SHORT_CHARS, LONG_CHARS))
    assert long > MAX_GROWTH * short
