"""The browser pool of a process: one warm Chromium, and a fresh context for each page.

The pool replaces the browser after a number of pages, and after a crash. The old one ends when its last page
is closed. Each page has its own guarded proxy, so that it has its own limits and sees nothing of other pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Self

from holdfast import Settings
from holdfast.egress import EgressPolicy, GuardedProxy, ProxyLimits
from holdfast.systems.capture.browser import Browser
from holdfast.systems.capture.browser_page import BrowserPage, attach_page
from holdfast.systems.capture.chromium_command import BrowserOptions, find_browser_user, find_chromium
from holdfast.systems.capture.errors import BrowserCrashedError, CaptureError

# The default context of a browser has no pages. Its proxy refuses everything.
CLOSED_PROXY_LIMITS = ProxyLimits(max_connections=0, max_bytes=0)
PAGE_PROXY_IDLE_TIMEOUT = timedelta(seconds=30)
DEFAULT_VIEWPORT = (1280, 800)
OPEN_TIMEOUT_S = 15.0


class BrowserPool:
    """Warm Chromium for a worker or an API process. Use `open_page` in tasks, and `close` at the end.

    `async with` starts Chromium at once. Without it, Chromium starts with the first page.

    Arguments:
        policy: what pages may reach (default: `EgressPolicy.from_settings()`)
        options: how Chromium is started, and its limits (default: `BrowserOptions()`)
        idle_timeout: end Chromium if no page was open for this long (default: never)
    """

    def __init__(
        self,
        policy: EgressPolicy | None = None,
        options: BrowserOptions | None = None,
        *,
        idle_timeout: timedelta | None = None,
    ) -> None:
        self.policy = policy or EgressPolicy.from_settings()
        self.options = options or BrowserOptions()
        self._browser: Browser | None = None
        self._browsers: set[Browser] = set()
        self._starting = asyncio.Lock()
        self._free_pages = asyncio.Semaphore(self.options.max_open_pages)
        self._closed_proxy = GuardedProxy(self.policy, CLOSED_PROXY_LIMITS)
        self._stack = AsyncExitStack()
        self._is_open = False
        self._idle_timeout = idle_timeout
        self._idle_check: asyncio.Task[None] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, *, idle_timeout: timedelta | None = None) -> BrowserPool:
        """Return a pool with the egress policy and the Chromium of the settings."""
        policy, options = EgressPolicy.from_settings(settings), BrowserOptions.from_settings(settings)
        return cls(policy, options, idle_timeout=idle_timeout)

    async def open(self) -> None:
        """Start Chromium. Raise BrowserStartError at once if it is not installed or cannot start."""
        try:
            await self._get_browser()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End Chromium with all its pages."""
        if self._idle_check is not None:
            self._idle_check.cancel()
        for browser in list(self._browsers):
            await browser.kill()
        self._browsers.clear()
        self._browser = None
        self._is_open = False
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def browser_pids(self) -> tuple[int, ...]:
        """Return the process ids of the launchers of all running browsers."""
        return tuple(browser.pid for browser in self._browsers)

    @asynccontextmanager
    async def open_page(
        self, viewport: tuple[int, int] = DEFAULT_VIEWPORT, *, network: bool = True
    ) -> AsyncGenerator[BrowserPage]:
        """Open an empty page in a fresh context, and close both at the end of the block.

        Without `network`, the page reaches nothing at all. Wait if too many pages are open. Raise
        BrowserCrashedError if the browser ends during the block.
        """
        limits = ProxyLimits(max_bytes=self.options.max_page_bytes, idle_timeout=PAGE_PROXY_IDLE_TIMEOUT)
        limits = limits if network else CLOSED_PROXY_LIMITS
        async with self._free_pages, GuardedProxy(self.policy, limits) as proxy:
            browser, page = await self._open_page_in_live_browser(proxy, viewport)
            try:
                yield page
            except BrowserCrashedError as error:
                if not browser.connection.closed.is_set():
                    raise  # only the page has crashed
                raise await browser.build_crash_error() from error
            finally:
                # A cancelled task closes its context too.
                await asyncio.shield(self._close_page(browser, page))

    async def _open_page_in_live_browser(
        self, proxy: GuardedProxy, viewport: tuple[int, int]
    ) -> tuple[Browser, BrowserPage]:
        """Open a page. A browser that has ended or hangs since its last page is replaced once."""
        try:
            return await self._open_page(proxy, viewport)
        except BrowserCrashedError:
            return await self._open_page(proxy, viewport)

    async def _open_page(self, proxy: GuardedProxy, viewport: tuple[int, int]) -> tuple[Browser, BrowserPage]:
        browser = await self._get_browser()
        browser.count_opened_page()
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                context_id = await browser.create_context(proxy)
                return browser, await attach_page(browser, context_id, proxy, viewport)
        except (TimeoutError, CaptureError) as error:
            browser.open_pages -= 1
            raise await browser.build_crash_error() from error
        except BaseException:
            browser.open_pages -= 1
            await browser.kill()
            raise

    async def _close_page(self, browser: Browser, page: BrowserPage) -> None:
        await browser.close_context(page.context_id, page.proxy)
        browser.connection.forget_session(page.session_id)
        browser.open_pages -= 1
        if browser.open_pages == 0 and not browser.is_usable:
            await browser.kill()
        self._browsers = {browser for browser in self._browsers if not browser.has_ended}
        if self._idle_timeout is not None and browser.open_pages == 0:
            if self._idle_check is not None:
                self._idle_check.cancel()
            self._idle_check = asyncio.create_task(self._end_idle_browser(browser, self._idle_timeout))

    async def _end_idle_browser(self, browser: Browser, idle_timeout: timedelta) -> None:
        """End a browser that opened no page for a while. The next page starts another one."""
        opened_pages = browser.opened_pages
        await asyncio.sleep(idle_timeout.total_seconds())
        async with self._starting:
            if browser.opened_pages == opened_pages and browser.open_pages == 0:
                await browser.kill()
                self._browsers.discard(browser)

    async def _get_browser(self) -> Browser:
        """Return a running browser. Start one if there is none, or if the current one has had its pages."""
        async with self._starting:
            if not self._is_open:
                find_chromium(self.options.chromium)
                find_browser_user(self.options.user)
                await self._stack.enter_async_context(self._closed_proxy)
                self._is_open = True
            if self._browser is None or not self._browser.is_usable:
                browser = Browser(self.options)
                self._browsers.add(browser)
                try:
                    await browser.start(self._closed_proxy)
                except BaseException:
                    self._browsers.discard(browser)
                    raise
                self._browser = browser
            return self._browser
