"""Around every request: where its services are, how long it may take, what every answer carries, and an
event.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import telemetry
from holdfast.server.api.problems import on_surprise, problem
from holdfast.server.api.services import PLACE, Services

# Set where the answer has none of its own: the pages of the docs and the dashboard bring another policy.
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Protected:
    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope[PLACE] = self._services
        if scope["type"] == "http":
            await self._answered(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status, inside = time.monotonic(), 0, True
        patience = asyncio.timeout(self._services.settings.api_timeout.total_seconds())

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if inside:
                    patience.reschedule(None)  # what has begun to answer may take its time
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                async with patience:
                    await self._app(scope, receive, watched)
            finally:
                inside = False
        except TimeoutError:
            if status or not patience.expired():
                raise
            await problem(503, "This took too long")(scope, receive, watched)
        except Exception as surprise:
            if status:
                raise
            await (await on_surprise(surprise))(scope, receive, watched)
        finally:
            telemetry.emit(
                "api.request",
                method=scope["method"],
                path=_shown(scope["path"]),
                status=status or 500,
                seconds=time.monotonic() - began,
            )


def _shown(path: str) -> str:
    """The path without what is as good as a key: a signed address lets in whoever reads it in a log."""
    head, mark, _ = path.partition("/files/")
    return f"{head}{mark}(signed)" if mark else path
