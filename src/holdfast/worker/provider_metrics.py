"""Prometheus metrics of calls of providers: language models, speech servers and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.worker.prometheus import Counter, Histogram, Metric

CALL_DURATION_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
FIELDS_BY_UNIT: Final = {
    "tokens_in": "tokens_in",
    "tokens_out": "tokens_out",
    "audio_seconds": "audio_s",
    "images": "images",
}


class ProviderMetrics:
    """Counts the calls of providers of one process, from the event `provider.call_finished`."""

    def __init__(self) -> None:
        labels = ("kind", "provider", "model")
        self.calls = Counter(
            "holdfast_provider_calls_total",
            "Calls of providers that ended, by outcome.",
            (*labels, "outcome"),
        )
        self.units = Counter(
            "holdfast_provider_units_total",
            "What calls of providers used: tokens_in, tokens_out, audio_seconds and images.",
            (*labels, "unit"),
        )
        self.cost = Counter(
            "holdfast_provider_cost_total",
            "Cost of calls of providers, in the currency of the price table.",
            labels,
        )
        self.seconds = Histogram(
            "holdfast_provider_call_seconds",
            "Duration of calls of providers.",
            ("kind", "provider"),
            CALL_DURATION_BUCKETS_S,
        )

    @property
    def metrics(self) -> list[Metric]:
        """Return the metrics, to add them to a registry."""
        return [self.calls, self.units, self.cost, self.seconds]

    def record_call(self, fields: Mapping[str, Any]) -> None:
        """Count one call."""
        labels = (fields["kind"], fields["provider"], fields["model"])
        self.calls.add(*labels, fields["outcome"])
        self.cost.add(*labels, amount=fields["cost"] or 0.0)
        self.seconds.observe(*labels[:2], value=fields["seconds"])
        for unit, field in FIELDS_BY_UNIT.items():
            if fields[field]:
                self.units.add(*labels, unit, amount=fields[field])
