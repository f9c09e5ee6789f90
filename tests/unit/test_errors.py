from __future__ import annotations

import inspect
import re

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError


def list_error_classes() -> list[type[HoldfastError]]:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    return [kind for kind in kinds if issubclass(kind, HoldfastError)]


@pytest.mark.parametrize("kind", list_error_classes())
def test_the_module_docstring_shows_every_error_under_its_base(kind: type[HoldfastError]) -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]  # the tree
    places = {
        m[0]: (number, m.start()) for number, line in enumerate(lines) if (m := re.search(r"\w+Error", line))
    }
    assert kind.__name__ in places
    if kind is HoldfastError:
        return
    number, indent = places[kind.__name__]
    above = [name for name, (n, i) in places.items() if n < number and i < indent]
    assert above[-1] == kind.__bases__[0].__name__


@pytest.mark.parametrize("kind", list_error_classes())
def test_names_and_exit_codes_follow_the_contract(kind: type[HoldfastError]) -> None:
    assert kind.__name__.endswith("Error")
    assert kind.exit_code in {1, 2, 3, 4, 5, 6}


def test_sqlstates_are_unique_and_lead_back_to_their_error() -> None:
    states = [kind.sqlstate for kind in list_error_classes() if kind.sqlstate]
    assert len(states) == len(set(states))
    for kind in list_error_classes():
        if kind.sqlstate:
            error = errors.build_error_from_sqlstate(kind.sqlstate, "no", hint="do this", field="name")
            assert type(error) is kind
            assert (error.message, error.fix, error.field) == ("no", "do this", "name")
    assert errors.build_error_from_sqlstate("42P01", "no such table") is None


def test_str_contains_the_fix() -> None:
    assert str(HoldfastError("It broke.", fix="Mend it.")) == "It broke. Mend it."
