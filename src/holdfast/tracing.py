"""One trace from submit to run, with OpenTelemetry, when it is installed and switched on.

The submitter's position in the trace travels as `traceparent` among the job's labels, in the form of the W3C.
Which spans are kept and where they go is the application's to configure, with the OpenTelemetry SDK.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.errors import SettingsError

LABEL: Final = "traceparent"
SYSTEM: Final = "holdfast"


class Tracing:
    def __init__(self) -> None:
        try:
            from opentelemetry import context, trace  # noqa: PLC0415  (an extra)
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError as problem:
            raise SettingsError(
                "tracing is on, and OpenTelemetry is not installed.",
                fix="pip install 'holdfast[telemetry]', or set tracing to off.",
                field="tracing",
            ) from problem
        self._trace = trace
        self._context = context
        self._propagator = TraceContextTextMapPropagator()

    def add_trace_context(self, labels: Mapping[str, str] | None, what: str, queue: str | None) -> dict[str, str]:
        """The labels of a job, with a place in the trace for those who run it."""
        attributes = {"messaging.system": SYSTEM, "messaging.operation.type": "send"}
        if queue is not None:
            attributes["messaging.destination.name"] = queue
        tracer = self._trace.get_tracer("holdfast")
        kind = self._trace.SpanKind.PRODUCER
        with tracer.start_as_current_span(f"submit {what}", kind=kind, attributes=attributes):
            return {**(labels or {}), **self.position()}

    def position(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return {LABEL: carrier[LABEL]} if LABEL in carrier else {}

    @contextmanager
    def running(self, about: Mapping[str, Any], position: str | None) -> Generator[Span]:
        """Around one attempt: what its code traces hangs below it."""
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "process",
            "messaging.destination.name": about["queue"],
            "messaging.message.id": str(about["task"]),
            "holdfast.job": str(about["job"]),
            "holdfast.attempt": about["attempt"],
        }
        tracer = self._trace.get_tracer("holdfast")
        with (
            self.attached(position),
            tracer.start_as_current_span(
                f"run {about['name']}", kind=self._trace.SpanKind.CONSUMER, attributes=attributes
            ) as span,
        ):
            yield Span(self, span)

    @contextmanager
    def attached(self, position: str | None) -> Generator[None]:
        """What is traced inside hangs below a span of another process."""
        above = (
            self._propagator.extract({LABEL: position}, context=self._context.Context()) if position else None
        )
        token = self._context.attach(above if above is not None else self._context.Context())
        try:
            yield
        finally:
            self._context.detach(token)

    def failed(self, span: Any, error: str) -> None:
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))


class Span:
    """The span of an attempt."""

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing = tracing
        self._span = span

    def raised(self, problem: Exception) -> None:
        self._span.record_exception(problem)

    def ended(self, outcome: str, error: str | None) -> None:
        self._span.set_attribute("holdfast.outcome", outcome)
        if error is not None:
            self._tracing.failed(self._span, error)


@functools.cache
def _only() -> Tracing:
    return Tracing()


def here() -> dict[str, str]:
    """The current position as a label, when this process traces."""
    return _only().position() if _only.cache_info().currsize else {}


def get_tracing(switch: str) -> Tracing | None:
    return _only() if switch == "on" else None
