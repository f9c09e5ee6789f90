"""OpenTelemetry traces from request to submit, run and provider call, when the setting `tracing` is on.

The trace context of the submitter is stored as the label `traceparent` of the job, as the W3C defines it. The
application configures with the OpenTelemetry SDK which spans are recorded and where they are exported.
"""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.errors import SettingsError
from holdfast.redaction import SecretMasker

TRACE_LABEL_NAME: Final = "traceparent"
MESSAGING_SYSTEM: Final = "holdfast"


class Tracing:
    """Creates spans for requests, submits, attempts and calls of providers."""

    def __init__(self) -> None:
        try:
            from opentelemetry import context, trace  # noqa: PLC0415  (an extra)
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise SettingsError(
                "The setting tracing is on, but OpenTelemetry is not installed.",
                fix="Run pip install 'holdfast[telemetry]', or set tracing to off.",
                field="tracing",
            ) from error
        self._trace = trace
        self._context = context
        self._propagator = TraceContextTextMapPropagator()

    def add_trace_context(
        self, labels: Mapping[str, str] | None, name: str, queue: str | None
    ) -> dict[str, str]:
        """Return the job's labels with the trace context added, so that workers continue the trace."""
        attributes = {"messaging.system": MESSAGING_SYSTEM, "messaging.operation.type": "send"}
        if queue is not None:
            attributes["messaging.destination.name"] = queue
        tracer = self._trace.get_tracer("holdfast")
        kind = self._trace.SpanKind.PRODUCER
        with tracer.start_as_current_span(f"submit {name}", kind=kind, attributes=attributes):
            return {**(labels or {}), **self.get_trace_labels()}

    def get_trace_labels(self) -> dict[str, str]:
        """Return the current trace context as a label; empty outside a trace."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return {TRACE_LABEL_NAME: carrier[TRACE_LABEL_NAME]} if TRACE_LABEL_NAME in carrier else {}

    @contextmanager
    def trace_attempt(self, fields: Mapping[str, Any], traceparent: str | None) -> Generator[AttemptSpan]:
        """Run a block inside the span of an attempt. The parent is the submitter's span."""
        attributes = {
            "messaging.system": MESSAGING_SYSTEM,
            "messaging.operation.type": "process",
            "messaging.destination.name": fields["queue"],
            "messaging.message.id": str(fields["task"]),
            "holdfast.job": str(fields["job"]),
            "holdfast.attempt": fields["attempt"],
        }
        tracer = self._trace.get_tracer("holdfast")
        with (
            self.continue_trace(traceparent),
            tracer.start_as_current_span(
                f"run {fields['name']}", kind=self._trace.SpanKind.CONSUMER, attributes=attributes
            ) as span,
        ):
            yield AttemptSpan(self, span)

    @contextmanager
    def trace_request(
        self, method: str, path: str, traceparent: str | None
    ) -> Generator[Callable[[int, str | None], None]]:
        """Run a block inside the span of an HTTP request. Call the value with the status and the route."""
        tracer = self._trace.get_tracer("holdfast")
        attributes = {"http.request.method": method, "url.path": path}
        with (
            self.continue_trace(traceparent),
            tracer.start_as_current_span(
                method, kind=self._trace.SpanKind.SERVER, attributes=attributes
            ) as span,
        ):

            def record_response(status: int, route: str | None) -> None:
                span.set_attribute("http.response.status_code", status)
                if route is not None:
                    span.set_attribute("http.route", route)
                    span.update_name(f"{method} {route}")
                if status >= 500:
                    span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))

            yield record_response

    def record_provider_call(self, _: str, fields: Mapping[str, Any]) -> None:
        """Add a span for a call of a provider that has just ended: the event `provider.call_finished`."""
        ended_ns = time.time_ns()
        attributes = {
            "gen_ai.operation.name": str(fields["kind"]),
            "gen_ai.provider.name": str(fields["provider"]),
            "gen_ai.request.model": str(fields["model"]),
            "holdfast.outcome": str(fields["outcome"]),
        }
        span = self._trace.get_tracer("holdfast").start_span(
            f"call {fields['kind']} {fields['provider']}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            start_time=ended_ns - int(fields["seconds"] * 1e9),
        )
        if fields["outcome"] != "succeeded":
            self.mark_span_failed(span, str(fields["outcome"]))
        span.end(ended_ns)

    @contextmanager
    def continue_trace(self, traceparent: str | None) -> Generator[None]:
        """Make the spans of a block children of the span in `traceparent`."""
        parent = self._context.Context()
        if traceparent:
            parent = self._propagator.extract({TRACE_LABEL_NAME: traceparent}, context=parent)
        token = self._context.attach(parent)
        try:
            yield
        finally:
            self._context.detach(token)

    def mark_span_failed(self, span: Any, error: str) -> None:
        """Mark a span as failed."""
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))


class AttemptSpan:
    """The span of an attempt."""

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing = tracing
        self._span = span

    def record_exception(self, error: Exception, masker: SecretMasker) -> None:
        """Add an exception to the span, with the fields of the semantic conventions and without secrets."""
        stack = "".join(traceback.format_exception(error))
        attributes = {
            "exception.type": type(error).__qualname__,
            "exception.message": masker.mask_text(str(error)),
            "exception.stacktrace": masker.mask_text(stack),
        }
        self._span.add_event("exception", attributes=attributes)

    def record_outcome(self, outcome: str, error: str | None) -> None:
        """Add the outcome of the attempt to the span."""
        self._span.set_attribute("holdfast.outcome", outcome)
        if error is not None:
            self._tracing.mark_span_failed(self._span, error)


@functools.cache
def _create_tracing() -> Tracing:
    return Tracing()


def get_current_trace_labels() -> dict[str, str]:
    """Return the current trace context as a label, if this process traces."""
    return _create_tracing().get_trace_labels() if _create_tracing.cache_info().currsize else {}


def get_tracing(switch: str) -> Tracing | None:
    """Return the tracing of this process, or None if the setting `tracing` is off."""
    return _create_tracing() if switch == "on" else None
