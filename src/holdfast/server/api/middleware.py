"""Middleware around every request: services, time limit, security headers and the telemetry event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import telemetry
from holdfast.server.api.problem_responses import handle_unexpected_error, problem_response
from holdfast.server.api.services import SERVICES_ASGI_SCOPE_KEY, AppServices
from holdfast.storage.public_links import RequestPrefix
from holdfast.tracing import TRACE_LABEL_NAME, Tracing

UNTRACED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds

# Added to responses that do not set these headers. The API docs page and the dashboard set another policy.
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class RequestTelemetryMiddleware:
    """ASGI middleware that emits `api.request_completed` after each HTTP request, and traces requests."""

    def __init__(self, app: ASGIApp, tracing: Tracing | None = None) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at, status = time.monotonic(), 500

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._tracing is None or scope["path"] in UNTRACED_PATHS:
                await self._app(scope, receive, send_and_note_status)
            else:
                await self._run_traced(self._tracing, scope, receive, send_and_note_status, lambda: status)
        finally:
            telemetry.emit(
                "api.request_completed",
                method=scope["method"],
                path=_redact_signed_path(scope["path"]),
                status=status,
                seconds=time.monotonic() - started_at,
            )

    async def _run_traced(
        self, tracing: Tracing, scope: Scope, receive: Receive, send: Send, get_status: Callable[[], int]
    ) -> None:
        """Run the request in a span below that of the client. Jobs that it submits continue the trace."""
        headers = dict(scope["headers"])
        traceparent = headers.get(TRACE_LABEL_NAME.encode(), b"").decode("latin-1") or None
        path = _redact_signed_path(scope["path"])
        with tracing.trace_request(scope["method"], path, traceparent) as record_response:
            try:
                await self._app(scope, receive, send)
            finally:
                record_response(get_status(), getattr(scope.get("route"), "path", None))


class SecurityHeadersMiddleware:
    """ASGI middleware that adds the missing security headers to each HTTP response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class RequestTimeoutMiddleware:
    """ASGI middleware that limits the time until a response starts.

    A request that takes longer gets status 503. An unexpected error before the response starts becomes
    status 500.
    """

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response_started, app_is_running = False, True
        time_limit = asyncio.timeout(self._timeout_s)

        async def send_and_stop_timer(message: Message) -> None:
            nonlocal response_started
            if message["type"] == "http.response.start":
                response_started = True
                if app_is_running:
                    time_limit.reschedule(None)  # a response that has started may take as long as it needs
            await send(message)

        try:
            try:
                async with time_limit:
                    await self._app(scope, receive, send_and_stop_timer)
            finally:
                app_is_running = False
        except Exception as error:
            if response_started:
                raise
            response = await _build_error_response(error, timed_out=time_limit.expired())
            await response(scope, receive, send)


async def _build_error_response(error: Exception, *, timed_out: bool) -> Response:
    if timed_out and isinstance(error, TimeoutError):
        return problem_response(503, "The request took too long")
    if isinstance(error, ClientDisconnect):  # nobody reads it, but the event of the request has the status
        return problem_response(400, "The client closed the connection")
    return await handle_unexpected_error(error)


class AppServicesMiddleware:
    """ASGI middleware that makes the services of the application available to each request."""

    def __init__(self, app: ASGIApp, services: AppServices) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope[SERVICES_ASGI_SCOPE_KEY] = self._services
        with RequestPrefix(scope.get("root_path", "")):
            await self._app(scope, receive, send)


def _redact_signed_path(path: str) -> str:
    """Replace the signature in the path of a signed link, so that logs do not give access to the file."""
    head, separator, _ = path.partition("/files/")
    return f"{head}{separator}(signed)" if separator else path
