"""Tracebacks of failed tasks have the text that Python prints, also when their frames are remembered."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial

import pytest

from holdfast.worker import tracebacks


def raise_value_error(text: str = "no") -> None:
    raise ValueError(text)


def raise_from_cause() -> None:
    try:
        raise_value_error()
    except ValueError as error:
        raise KeyError("outer") from error


def raise_while_handling() -> None:
    try:
        raise_value_error()
    except ValueError:
        raise_value_error("second")


def raise_without_context() -> None:
    try:
        raise_value_error()
    except ValueError:
        raise KeyError("alone") from None


def raise_group() -> None:
    raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])


def raise_after_group() -> None:
    try:
        raise_group()
    except ExceptionGroup as error:
        raise RuntimeError("after") from error


def raise_with_note() -> None:
    error = ValueError("noted")
    error.add_note("a note\nof two lines")
    raise error


def raise_syntax_error() -> None:
    compile("1 +", "source.py", "exec")


def recurse(depth: int = 200) -> None:
    if depth == 0:
        raise_value_error()
    recurse(depth - 1)


def raise_in_circle() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__context__, second.__context__ = second, first
    raise first


RAISERS: list[Callable[[], None]] = [
    raise_value_error,
    raise_from_cause,
    raise_while_handling,
    raise_without_context,
    raise_group,
    raise_after_group,
    raise_with_note,
    raise_syntax_error,
    recurse,
    raise_in_circle,
]


def catch(raiser: Callable[[], None]) -> BaseException:
    try:
        raiser()
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("raiser", RAISERS, ids=lambda raiser: raiser.__name__)
def test_the_text_is_that_of_python(raiser: Callable[[], None]) -> None:
    for _ in range(3):  # the first one fills the cache
        error = catch(raiser)
        assert tracebacks.format_traceback(error) == "".join(traceback.format_exception(error))


def test_the_message_is_not_remembered() -> None:
    texts = [
        tracebacks.format_traceback(catch(partial(raise_value_error, f"no {number}"))) for number in range(3)
    ]
    assert [text.splitlines()[-1] for text in texts] == [f"ValueError: no {n}" for n in range(3)]


def test_an_exception_that_was_never_raised() -> None:
    assert tracebacks.format_traceback(ValueError("x")) == "ValueError: x\n"
    assert tracebacks.find_last_frame(ValueError("x")) is None


def test_the_last_frame_is_where_it_was_raised() -> None:
    frame = tracebacks.find_last_frame(catch(raise_while_handling))
    assert frame is not None
    assert (frame[0], frame[1]) == (__file__, "raise_value_error")


def test_the_cache_is_bounded() -> None:
    for n in range(tracebacks.MAX_CACHED_STACKS * 2):
        namespace: dict[str, Callable[[], None]] = {}
        exec(f"def fail():\n    raise ValueError({n})", namespace)  # a new place in the code
        error = catch(namespace["fail"])
        assert tracebacks.format_traceback(error).endswith(f"ValueError: {n}\n")
    assert len(tracebacks._frames._texts) <= tracebacks.MAX_CACHED_STACKS
