"""Arguments are bound as Python binds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.definitions.arguments import ArgumentBinder


def no_parameters() -> None: ...
def two_required(a: int, b: int) -> None: ...
def with_defaults(a: int, b: int = 2, c: int = 3) -> None: ...
def keyword_only(a: int, *, b: int, c: int = 3) -> None: ...


@pytest.mark.parametrize("function", [no_parameters, two_required, with_defaults, keyword_only])
@given(
    args=st.lists(st.integers(), max_size=4).map(tuple),
    kwargs=st.dictionaries(st.sampled_from("abcd"), st.integers(), max_size=4),
)
def test_arguments_are_bound_as_by_the_signature(
    function: Any, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    signature = inspect.signature(function)
    expected = try_to_bind(lambda: signature.bind(*args, **kwargs).arguments)
    assert try_to_bind(lambda: ArgumentBinder(signature).bind(args, kwargs)) == expected


def try_to_bind(bind: Callable[[], dict[str, Any]]) -> list[tuple[str, Any]] | str:
    """Return the arguments in their order, or the message of the error."""
    try:
        return list(bind().items())
    except TypeError as error:
        return str(error)
