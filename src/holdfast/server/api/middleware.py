"""Middleware around every request: services, time limit, security headers and the telemetry event."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import telemetry
from holdfast.server.api.problem_responses import handle_unexpected_error, problem_response
from holdfast.server.api.services import SERVICES_SCOPE_KEY, AppServices

# Added to responses that do not set these headers. The API docs page and the dashboard set another policy.
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class RequestMiddleware:
    """Gives every request its services and a time limit, and every response its security headers."""

    def __init__(self, app: ASGIApp, services: AppServices) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope[SERVICES_SCOPE_KEY] = self._services
        if scope["type"] == "http":
            await self._handle_http_request(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _handle_http_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at, status, app_is_running = time.monotonic(), 0, True
        time_limit = asyncio.timeout(self._services.settings.api_timeout.total_seconds())

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if app_is_running:
                    time_limit.reschedule(None)  # a response that has started may take as long as it needs
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                async with time_limit:
                    await self._app(scope, receive, send_with_headers)
            finally:
                app_is_running = False
        except TimeoutError:
            if status or not time_limit.expired():
                raise
            await problem_response(503, "The request took too long")(scope, receive, send_with_headers)
        except Exception as error:
            if status:
                raise
            await (await handle_unexpected_error(error))(scope, receive, send_with_headers)
        finally:
            telemetry.emit(
                "api.request_completed",
                method=scope["method"],
                path=_redact_path(scope["path"]),
                status=status or 500,
                seconds=time.monotonic() - started_at,
            )


def _redact_path(path: str) -> str:
    """Remove the signature of a signed link from a path, so that the log gives nobody access to the file."""
    head, separator, _ = path.partition("/files/")
    return f"{head}{separator}(signed)" if separator else path
