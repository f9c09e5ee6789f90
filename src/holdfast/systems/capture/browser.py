"""One running Chromium: its processes, its debugging connection and its answers to the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.egress import GuardedProxy
from holdfast.systems.capture.chromium_command import (
    BrowserOptions,
    build_chromium_command,
    build_chromium_environment,
    find_browser_user,
    find_chromium,
)
from holdfast.systems.capture.chromium_launcher import EXIT_TOO_MANY_PROCESSES, EXIT_TOO_MUCH_MEMORY
from holdfast.systems.capture.devtools import DevToolsConnection
from holdfast.systems.capture.errors import BrowserCrashedError, BrowserStartError, CaptureError
from holdfast.systems.piped_process import PipedProcess, open_pipe_reader

LOGGER = logging.getLogger(__name__)
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
MAX_LOG_LINES = 50
LAUNCHER = Path(__file__).with_name("chromium_launcher.py")
CRASH_MESSAGES = {
    EXIT_TOO_MUCH_MEMORY: "The browser ran out of memory while it loaded the page.",
    EXIT_TOO_MANY_PROCESSES: "The page started too many processes.",
}


class Browser:
    """A Chromium that was started by `start`. It has no window and no profile that outlives it."""

    def __init__(self, options: BrowserOptions) -> None:
        self.connection = DevToolsConnection()
        self.user_agent = ""
        self.opened_pages = 0
        self.open_pages = 0
        self.is_retired = False
        self._options = options
        self._process: PipedProcess | None = None
        self._log: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self._log_reader: asyncio.Task[None] | None = None
        self._proxies: dict[int, GuardedProxy] = {}

    @property
    def pid(self) -> int:
        """Return the process id of the launcher, the parent of all processes of the browser."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_usable(self) -> bool:
        """Return whether the browser can open another page."""
        return not self.is_retired and not self.connection.closed.is_set()

    @property
    def has_ended(self) -> bool:
        """Return whether no process of the browser is left."""
        return self._process is None or self._process.returncode is not None

    def count_opened_page(self) -> None:
        """Count a page. The browser opens no more pages when it has had its number."""
        self.open_pages += 1
        self.opened_pages += 1
        self.is_retired = self.is_retired or self.opened_pages >= self._options.pages_per_browser

    async def start(self, proxy: GuardedProxy) -> None:
        """Start Chromium and wait until it responds. Raise BrowserStartError if it does not."""
        program = find_chromium(self._options.chromium)
        user = find_browser_user(self._options.user)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._launch(program, user, proxy)
                version = await self.connection.send("Browser.getVersion")
                # Sites refuse browsers that call themselves headless.
                self.user_agent = str(version["userAgent"]).replace("HeadlessChrome", "Chrome")
                await self._intercept_requests()
        except (TimeoutError, CaptureError, OSError) as error:
            await self.kill()
            raise self._build_start_error() from error
        except BaseException:
            await self.kill()
            raise
        LOGGER.info("browser.started pid=%s sandbox=%s", self.pid, self._options.sandbox)

    async def _launch(self, program: Path, user: tuple[int, int] | None, proxy: GuardedProxy) -> None:
        profile = Path(tempfile.mkdtemp(prefix="holdfast-browser-"))
        if user is not None:
            os.chown(profile, *user)
        command_read, command_write = os.pipe()
        event_read, event_write = os.pipe()
        options = {
            "worker_pid": os.getpid(),
            "input_fd": command_read,
            "output_fd": event_write,
            "max_memory_bytes": self._options.max_memory_bytes,
            "max_processes": self._options.max_processes,
            "profile": profile,
            **({"uid": user[0], "gid": user[1]} if user else {}),
        }
        try:
            self._process = PipedProcess(
                [
                    sys.executable,
                    "-IS",
                    str(LAUNCHER),
                    *(f"{name}={value}" for name, value in options.items()),
                    "--",
                    *build_chromium_command(program, self._options, profile, proxy),
                ],
                pass_fds=(command_read, event_write),
                environment=build_chromium_environment(profile),
                folder=Path("/"),
            )
        except BaseException:
            os.close(command_write)
            os.close(event_read)
            raise
        finally:
            os.close(command_read)
            os.close(event_write)
        self._log_reader = asyncio.create_task(self._read_log(self._process))
        await self.connection.open(event_read, command_write)

    async def _read_log(self, process: PipedProcess) -> None:
        async with open_pipe_reader(process.output) as reader:
            while chunk := await reader.read(4096):
                self._log.extend(chunk.decode("utf-8", "replace").splitlines())

    async def _intercept_requests(self) -> None:
        """Give Chromium the passwords of the proxies, which its command line cannot carry."""
        self.connection.on_event("Fetch.authRequired", self._send_credentials)
        self.connection.on_event("Fetch.requestPaused", self._continue_request)
        await self.connection.send("Fetch.enable", {"handleAuthRequests": True})

    def _send_credentials(self, event: dict[str, Any]) -> None:
        challenge = event["authChallenge"]
        proxy = self._proxies.get(urlsplit(str(challenge.get("origin", ""))).port or 0)
        if challenge.get("source") == "Proxy" and proxy is not None:
            answer = {
                "response": "ProvideCredentials",
                "username": proxy.username,
                "password": proxy.password,
            }
        else:
            answer = {"response": "CancelAuth"}
        self.connection.post(
            "Fetch.continueWithAuth", {"requestId": event["requestId"], "authChallengeResponse": answer}
        )

    def _continue_request(self, event: dict[str, Any]) -> None:
        self.connection.post("Fetch.continueRequest", {"requestId": event["requestId"]})

    async def create_context(self, proxy: GuardedProxy) -> str:
        """Create an empty context (cookies, storage, cache) with its own proxy, and return its id."""
        self._proxies[proxy.port] = proxy
        result = await self.connection.send(
            "Target.createBrowserContext",
            {"proxyServer": proxy.server_url, "proxyBypassList": "<-loopback>", "disposeOnDetach": True},
        )
        return str(result["browserContextId"])

    async def close_context(self, context_id: str, proxy: GuardedProxy) -> None:
        """Close a context with its pages. Kill the browser if it does not respond."""
        self._proxies.pop(proxy.port, None)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.connection.send("Target.disposeBrowserContext", {"browserContextId": context_id})
        except (TimeoutError, CaptureError):
            await self.kill()

    async def kill(self) -> None:
        """End all processes of the browser, and wait until they have ended."""
        self.is_retired = True
        self.connection.close()
        process = self._process
        if process is None:
            return
        process.close_input()  # the launcher kills all its descendants
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._log_reader is not None:
            await self._log_reader

    async def build_crash_error(self) -> BrowserCrashedError:
        """Return the error of a page whose browser has ended, with the reason if the launcher knows it."""
        await self.kill()
        code = self._process.returncode if self._process is not None else None
        LOGGER.warning("browser.crashed pid=%s exit_code=%s", self.pid, code)
        message = CRASH_MESSAGES.get(code or 0)
        return BrowserCrashedError(message) if message else BrowserCrashedError()

    def _build_start_error(self) -> BrowserStartError:
        log = "\n".join(self._log)
        if "No usable sandbox" in log or "Failed to move to new namespace" in log:
            return BrowserStartError(
                "Chromium cannot use its sandbox on this machine.",
                fix="Allow unprivileged user namespaces, or set HOLDFAST_CHROMIUM_SANDBOX=off in an isolated "
                "container.",
            )
        detail = next((line for line in reversed(self._log) if line.strip()), "it did not respond in time")
        return BrowserStartError(
            f"Chromium did not start: {detail[:300].rstrip('.')}.",
            fix="Run the same program by hand to see its errors.",
        )
