"""One page in its own browser context: navigation, scripts and screenshots."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from dataclasses import dataclass
from typing import Any

from holdfast.egress import GuardedProxy
from holdfast.systems.capture.browser import Browser
from holdfast.systems.capture.devtools import DevToolsConnection, DevToolsError, EventCallback
from holdfast.systems.capture.errors import BrowserCrashedError

QUIET_NETWORK_S = 0.5
WEBP_QUALITY = 80
# Chromium repeats dialogs as fast as they are dismissed, so a loop of dialogs would never end.
MAX_DIALOGS = 20


@dataclass
class MainResponse:
    """The response that became the document of a page."""

    url: str
    status: int
    media_type: str


class BrowserPage:
    """A page that `BrowserPool.open_page` opened. Its methods raise BrowserCrashedError if it crashes."""

    def __init__(
        self,
        connection: DevToolsConnection,
        context_id: str,
        session_id: str,
        target_id: str,
        proxy: GuardedProxy,
    ) -> None:
        self.context_id = context_id
        self.session_id = session_id
        self.proxy = proxy
        self.response: MainResponse | None = None
        self.downloads = 0
        self._connection = connection
        self._target_id = target_id
        self._loaded = asyncio.Event()
        self._crashed = asyncio.Event()
        self._requests: set[str] = set()
        self._last_activity_at = 0.0
        self._dialogs = 0

    @property
    def has_crashed(self) -> bool:
        """Return whether the process of the page has ended."""
        return self._crashed.is_set()

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command to the page and return its result."""
        if self._crashed.is_set():
            raise BrowserCrashedError("The page crashed.")
        command = asyncio.ensure_future(self._connection.send(method, params, self.session_id))
        crash = asyncio.ensure_future(self._crashed.wait())
        try:
            await asyncio.wait({command, crash}, return_when=asyncio.FIRST_COMPLETED)
            if not command.done():
                raise BrowserCrashedError("The page crashed.")
            return command.result()
        finally:
            for waiter in (command, crash):
                waiter.cancel()
            await asyncio.gather(command, crash, return_exceptions=True)

    def listen(self) -> None:
        """Follow the events of the page."""
        callbacks: dict[str, EventCallback] = {
            "Inspector.targetCrashed": lambda _: self._crashed.set(),
            "Page.javascriptDialogOpening": self._dismiss_dialog,
            "Page.loadEventFired": lambda _: self._loaded.set(),
            "Page.frameNavigated": self._note_navigation,
            "Page.downloadWillBegin": self._note_download,
            "Network.requestWillBeSent": self._note_request,
            "Network.responseReceived": self._note_response,
            "Network.loadingFinished": self._note_request_end,
            "Network.loadingFailed": self._note_request_end,
        }
        for method, callback in callbacks.items():
            self._connection.on_event(method, callback, self.session_id)

    async def navigate(self, url: str) -> str | None:
        """Load a URL. Return when its document begins, or return the error of Chromium (net::ERR_...)."""
        self._loaded.clear()
        result = await self.send("Page.navigate", {"url": url, "transitionType": "typed"})
        return str(result["errorText"]) if result.get("errorText") else None

    async def wait_until_loaded(self, timeout_s: float) -> bool:
        """Wait until the document and its images have loaded. Return whether they have."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._loaded.wait()
        return self._loaded.is_set()

    async def wait_until_quiet(self, timeout_s: float) -> None:
        """Wait until no request has run for half a second, or until the time has passed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while (now := loop.time()) < end:
            quiet_s = 0.0 if self._requests else now - self._last_activity_at
            if quiet_s >= QUIET_NETWORK_S and self._loaded.is_set():
                return
            await asyncio.sleep(0.05)

    async def run_script(self, function: str, *arguments: object) -> Any:
        """Call a JavaScript function in a world of its own, which scripts of the page cannot change."""
        world = await self.send(
            "Page.createIsolatedWorld", {"frameId": self._target_id, "worldName": "holdfast"}
        )
        result = await self.send(
            "Runtime.callFunctionOn",
            {
                "functionDeclaration": function,
                "executionContextId": world["executionContextId"],
                "arguments": [{"value": argument} for argument in arguments],
                "awaitPromise": True,
                "returnByValue": True,
            },
        )
        if "exceptionDetails" in result:
            raise DevToolsError("Runtime.callFunctionOn", str(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    async def stop_scripts(self) -> None:
        """End the script that runs, and run no others. A page in an endless loop can then be drawn."""
        await self.send("Emulation.setScriptExecutionDisabled", {"value": True})
        await self.send("Runtime.terminateExecution")
        self._connection.post("Page.stopLoading", session_id=self.session_id)

    async def take_screenshot(self, width: int, height: int) -> bytes:
        """Return the top left part of the page as WebP."""
        result = await self.send(
            "Page.captureScreenshot",
            {
                "format": "webp",
                "quality": WEBP_QUALITY,
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
            },
        )
        return base64.b64decode(result["data"])

    async def print_pdf(self, html: str, timeout_s: float) -> bytes:
        """Show an HTML document without running its scripts, and return it as PDF.

        The size and the margins of the pages are those of its style sheet (`@page`).
        """
        await self.send("Emulation.setScriptExecutionDisabled", {"value": True})
        self._loaded.clear()
        await self.send("Page.setDocumentContent", {"frameId": self._target_id, "html": html})
        await self.wait_until_loaded(timeout_s)
        result = await self.send(
            "Page.printToPDF",
            {
                "printBackground": True,
                "preferCSSPageSize": True,
                "generateTaggedPDF": True,
                "generateDocumentOutline": True,
            },
        )
        return base64.b64decode(result["data"])

    def _dismiss_dialog(self, event: dict[str, Any]) -> None:
        self._connection.post("Page.handleJavaScriptDialog", {"accept": False}, self.session_id)
        self._dialogs += 1
        if self._dialogs == MAX_DIALOGS:
            for method, params in (
                ("Emulation.setScriptExecutionDisabled", {"value": True}),
                ("Runtime.terminateExecution", {}),
            ):
                self._connection.post(method, params, self.session_id)

    def _note_navigation(self, event: dict[str, Any]) -> None:
        if event["frame"]["id"] == self._target_id:
            self._loaded.clear()
            self._requests.clear()

    def _note_download(self, event: dict[str, Any]) -> None:
        self.downloads += 1

    def _note_request(self, event: dict[str, Any]) -> None:
        self._requests.add(event["requestId"])
        self._last_activity_at = asyncio.get_running_loop().time()

    def _note_request_end(self, event: dict[str, Any]) -> None:
        self._requests.discard(event["requestId"])
        self._last_activity_at = asyncio.get_running_loop().time()

    def _note_response(self, event: dict[str, Any]) -> None:
        if event.get("type") == "Document" and event.get("frameId") == self._target_id:
            response = event["response"]
            self.response = MainResponse(response["url"], response["status"], response.get("mimeType", ""))


async def attach_page(
    browser: Browser, context_id: str, proxy: GuardedProxy, viewport: tuple[int, int]
) -> BrowserPage:
    """Create an empty page in a context, without downloads and pop-ups."""
    connection = browser.connection
    await connection.send("Browser.setDownloadBehavior", {"behavior": "deny", "browserContextId": context_id})
    target = await connection.send(
        "Target.createTarget", {"url": "about:blank", "browserContextId": context_id}
    )
    target_id = str(target["targetId"])
    session = await connection.send("Target.attachToTarget", {"targetId": target_id, "flatten": True})
    page = BrowserPage(connection, context_id, str(session["sessionId"]), target_id, proxy)
    page.listen()
    width, height = viewport
    commands: list[tuple[str, dict[str, Any]]] = [
        ("Inspector.enable", {}),
        ("Page.enable", {}),
        ("Network.enable", {}),
        ("Network.setUserAgentOverride", {"userAgent": browser.user_agent, "acceptLanguage": "en-US,en"}),
        (
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        ),
    ]
    await asyncio.gather(*(page.send(method, params) for method, params in commands))
    return page
