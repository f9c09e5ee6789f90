"""Stored JSON of a wrong shape cannot break a page. A worker that reported a list made /workers fail."""

from __future__ import annotations

import pytest

from holdfast.server.dashboard.json_values import list_or_empty, object_or_empty


@pytest.mark.parametrize("value", [None, 5, "text", True])
def test_other_values_count_as_empty(value: object) -> None:
    assert object_or_empty(value) == {}
    assert list_or_empty(value) == []


def test_objects_and_lists_are_returned() -> None:
    assert object_or_empty({"a": 1}) == {"a": 1}
    assert object_or_empty([1]) == {}
    assert list_or_empty([1]) == [1]
    assert list_or_empty({"a": 1}) == []
