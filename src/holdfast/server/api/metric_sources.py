"""Metrics that applications and systems add to `/metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class MetricSample:
    """One value of a gauge at `/metrics`. Samples of the same name have the same labels.

    >>> from holdfast.server import MetricSample
    >>> MetricSample("shop_orders", "Open orders.", 7, {"country": "de"}).labels
    {'country': 'de'}
    """

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


# Returns the current values. The arguments are a connection with the rights of the caller, and the schema of
# the systems.
MetricSource: TypeAlias = Callable[[Any, str], Awaitable[Sequence[MetricSample]]]
