"""Counters, gauges and histograms in the text format of Prometheus (0.0.4), without a library.

Any thread may count. A reader sees each series at some moment, not all of them at the same one.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES: Final = 2_000  # of one metric; names that users invent must not fill the memory
OTHER: Final = "(other)"
Labels = tuple[str, ...]


class Metric(Protocol):
    name: str

    def lines(self) -> Iterable[str]: ...


class _Series:
    kind = "untyped"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._text = text
        self._labels = tuple(labels)
        self._lock = threading.Lock()

    def _head(self) -> list[str]:
        text = self._text.replace("\\", r"\\").replace("\n", r"\n")
        return [f"# HELP {self.name} {text}", f"# TYPE {self.name} {self.kind}"]

    def _key(self, known: Mapping[Labels, object], values: Labels) -> Labels:
        return values if values in known or len(known) < MOST_SERIES else (OTHER,) * len(values)

    def _named(self, values: Labels, *more: tuple[str, str]) -> str:
        pairs = [*zip(self._labels, values, strict=True), *more]
        return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}" if pairs else ""


class Counter(_Series):
    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._counts: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        with self._lock:
            key = self._key(self._counts, labels)
            self._counts[key] = self._counts.get(key, 0.0) + amount

    def lines(self) -> Iterable[str]:
        with self._lock:
            counts = sorted(self._counts.items())
        return [*self._head(), *(f"{self.name}{self._named(k)} {_number(v)}" for k, v in counts)]


class Histogram(_Series):
    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._cells: dict[Labels, list[float]] = {}  # one count per bound, those above all, and the sum

    def observe(self, *labels: str, value: float) -> None:
        with self._lock:
            key = self._key(self._cells, labels)
            cells = self._cells.get(key)
            if cells is None:
                cells = self._cells[key] = [0.0] * (len(self._bounds) + 2)
            cells[bisect_left(self._bounds, value)] += 1
            cells[-1] += value

    def lines(self) -> Iterable[str]:
        with self._lock:
            cells = sorted((key, list(counts)) for key, counts in self._cells.items())
        found = self._head()
        for key, counts in cells:
            total = 0.0
            for bound, count in zip((*self._bounds, math.inf), counts, strict=False):
                total += count
                found.append(f"{self.name}_bucket{self._named(key, ('le', _number(bound)))} {_number(total)}")
            found.append(f"{self.name}_sum{self._named(key)} {_number(counts[-1])}")
            found.append(f"{self.name}_count{self._named(key)} {_number(total)}")
        return found


class Gauge(_Series):
    """Read when it is asked for. None: there is nothing to tell now."""

    kind = "gauge"

    def __init__(
        self, name: str, text: str, read: Callable[[], float | None], *, kind: str = "gauge"
    ) -> None:
        super().__init__(name, text)
        self.kind = kind
        self._read = read

    def lines(self) -> Iterable[str]:
        value = self._read()
        return [] if value is None else [*self._head(), f"{self.name} {_number(value)}"]


class Fixed(_Series):
    """Facts about the process, as labels of a 1."""

    kind = "gauge"

    def __init__(self, name: str, text: str, facts: Mapping[str, str]) -> None:
        super().__init__(name, text, tuple(facts))
        self._facts = tuple(facts.values())

    def lines(self) -> Iterable[str]:
        return [*self._head(), f"{self.name}{self._named(self._facts)} 1"]


class Registry:
    def __init__(self, metrics: Iterable[Metric] = ()) -> None:
        self._metrics = {metric.name: metric for metric in metrics}

    def add(self, *metrics: Metric) -> None:
        self._metrics.update({metric.name: metric for metric in metrics})

    def text(self) -> str:
        lines = [line for metric in list(self._metrics.values()) for line in metric.lines()]
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _escaped(value: str) -> str:
    clean = value.encode("utf-8", "replace").decode()
    return clean.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
