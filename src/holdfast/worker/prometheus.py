"""Counters, gauges and histograms in the Prometheus text format (0.0.4), without a library.

Updates are thread-safe. The output is not a consistent snapshot: each metric is read at a different moment.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_SERIES_PER_METRIC: Final = 2_000  # label values that users choose must not fill the memory
OVERFLOW_LABEL_VALUE: Final = "(other)"
LabelValues = tuple[str, ...]


class Metric(Protocol):
    name: str

    def format_lines(self) -> Iterable[str]: ...


class _LabeledMetric:
    kind = "untyped"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._text = text
        self._labels = tuple(labels)
        self._lock = threading.Lock()

    def _format_header(self) -> list[str]:
        text = self._text.replace("\\", r"\\").replace("\n", r"\n")
        return [f"# HELP {self.name} {text}", f"# TYPE {self.name} {self.kind}"]

    def _choose_series(self, known: Mapping[LabelValues, object], values: LabelValues) -> LabelValues:
        return (
            values
            if values in known or len(known) < MAX_SERIES_PER_METRIC
            else (OVERFLOW_LABEL_VALUE,) * len(values)
        )

    def _format_labels(self, values: LabelValues, *more: tuple[str, str]) -> str:
        pairs = [*zip(self._labels, values, strict=True), *more]
        return (
            "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in pairs) + "}" if pairs else ""
        )


class Counter(_LabeledMetric):
    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._counts: dict[LabelValues, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        with self._lock:
            key = self._choose_series(self._counts, labels)
            self._counts[key] = self._counts.get(key, 0.0) + amount

    def format_lines(self) -> Iterable[str]:
        with self._lock:
            counts = sorted(self._counts.items())
        return [
            *self._format_header(),
            *(f"{self.name}{self._format_labels(k)} {_format_number(v)}" for k, v in counts),
        ]


class Histogram(_LabeledMetric):
    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._cells: dict[LabelValues, list[float]] = {}  # one count per bound, those above all, and the sum

    def observe(self, *labels: str, value: float) -> None:
        with self._lock:
            key = self._choose_series(self._cells, labels)
            cells = self._cells.get(key)
            if cells is None:
                cells = self._cells[key] = [0.0] * (len(self._bounds) + 2)
            cells[bisect_left(self._bounds, value)] += 1
            cells[-1] += value

    def format_lines(self) -> Iterable[str]:
        with self._lock:
            cells = sorted((key, list(counts)) for key, counts in self._cells.items())
        lines = self._format_header()
        for key, counts in cells:
            total = 0.0
            for bound, count in zip((*self._bounds, math.inf), counts, strict=False):
                total += count
                labels = self._format_labels(key, ("le", _format_number(bound)))
                lines.append(f"{self.name}_bucket{labels} {_format_number(total)}")
            lines.append(f"{self.name}_sum{self._format_labels(key)} {_format_number(counts[-1])}")
            lines.append(f"{self.name}_count{self._format_labels(key)} {_format_number(total)}")
        return lines


class Gauge(_LabeledMetric):
    """A value that is read when the metrics are collected. None omits the metric."""

    kind = "gauge"

    def __init__(
        self, name: str, text: str, read: Callable[[], float | None], *, kind: str = "gauge"
    ) -> None:
        super().__init__(name, text)
        self.kind = kind
        self._read = read

    def format_lines(self) -> Iterable[str]:
        value = self._read()
        return [] if value is None else [*self._format_header(), f"{self.name} {_format_number(value)}"]


class InfoMetric(_LabeledMetric):
    """Facts about the process, as labels of a metric whose value is 1."""

    kind = "gauge"

    def __init__(self, name: str, text: str, facts: Mapping[str, str]) -> None:
        super().__init__(name, text, tuple(facts))
        self._facts = tuple(facts.values())

    def format_lines(self) -> Iterable[str]:
        return [*self._format_header(), f"{self.name}{self._format_labels(self._facts)} 1"]


class MetricRegistry:
    """A set of metrics, formatted together as Prometheus text."""

    def __init__(self, metrics: Iterable[Metric] = ()) -> None:
        self._metrics = {metric.name: metric for metric in metrics}

    def add(self, *metrics: Metric) -> None:
        self._metrics.update({metric.name: metric for metric in metrics})

    def format_text(self) -> str:
        lines = [line for metric in list(self._metrics.values()) for line in metric.format_lines()]
        return "\n".join(lines) + "\n"


def _format_number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _escape_label(value: str) -> str:
    clean = value.encode("utf-8", "replace").decode()
    return clean.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
