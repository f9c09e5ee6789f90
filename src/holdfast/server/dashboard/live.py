"""Live updates: pages that change while somebody looks at them.

Every visible page holds one event stream. While there is any, a single loop polls the database for a change
token, which differs if anything was written anywhere (one statement, no table is read). If it differs, each
watched page is rendered once, however many users watch it, and sent to them if its content changed. An event
holds the complete content of a page, so a missed event costs nothing: the next one is complete. A stream that
reconnects names the version that it has, and receives only a newer one.

Rendering may take long under load. A page is rendered again no sooner than ten times as long as its
last rendering took, and at most four times a second. All pages together render for at most a quarter of the
time, so fifty open pages cost the database no more than a few: each is updated less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from holdfast.engine import alerts, maintenance, overview
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.server.api.access_monitor import WatchedAccess
from holdfast.server.dashboard.sessions import mask_form_token
from holdfast.server.dashboard.site import DashboardSite, PageFunction, PageRequest, get_page_cache_key

CHANGE_POLL_INTERVAL_S = 0.5
MAINTENANCE_INTERVAL_S = 2.0
SHARD_TOKEN_TIMEOUT_S = 2.0
KEEPALIVE_INTERVAL_S = 15.0
MAX_RENDERED_PAGE_AGE_S = 20.0  # states such as "unresponsive" and "lost" change with time, without any write
MAX_RENDER_PAUSE_S = 30.0
RENDER_REST_FACTOR = 3.0
RECONNECT_DELAY_MS = 1500
FORM_TOKEN_PLACEHOLDER = "%%token%%"  # noqa: S105  (stands for each user's form token in shared HTML)

_log = logging.getLogger("holdfast.server.dashboard")


class WatchedPage:
    """A dashboard page that is open in browsers of users with the same permissions and preferences."""

    def __init__(self, request: PageRequest, function: PageFunction) -> None:
        self.request = request
        self.function = function
        self.html = ""
        self.version = ""
        self.problem: str | None = None
        self.viewers: set[asyncio.Event] = set()
        self.rendered_at = float("-inf")
        self.pause_s = CHANGE_POLL_INTERVAL_S
        self.is_stale = True

    def is_render_due(self) -> bool:
        """Return whether the page must be rendered again now."""
        age = time.monotonic() - self.rendered_at
        return (self.is_stale and age >= self.pause_s) or age >= max(MAX_RENDERED_PAGE_AGE_S, self.pause_s)

    def notify_viewers(self) -> None:
        """Wake up every open event stream of this page."""
        for viewer in self.viewers:
            viewer.set()


class RenderBudget:
    """Keeps rendering to a share of the time, however many pages are open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed_at = float("-inf")

    def allows_render(self) -> bool:
        """Return whether enough time has passed since the last rendering."""
        return self._clock() >= self._allowed_at

    def record_render(self, duration_s: float) -> None:
        """Record how long a page took to render: the next one waits three times as long."""
        self._allowed_at = self._clock() + RENDER_REST_FACTOR * duration_s


class SessionWatch:
    """Tells an open event stream when the session of its viewer has ended, and wakes it up."""

    def __init__(
        self,
        site: DashboardSite,
        request: PageRequest,
        changed: asyncio.Event,
        is_signed_in: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        session = request.session
        self._expires = session.expires
        self._is_signed_in = is_signed_in
        self._checked_at = time.monotonic()
        self._access: WatchedAccess | None = None
        if session.id is not None:
            self._access = site.services.access_monitor.watch(session.id, changed.set)

    def get_wait_s(self) -> float:
        """Return how long the stream may wait for a change."""
        return max(0.0, min(KEEPALIVE_INTERVAL_S, self._expires - time.time()))

    async def is_active(self) -> bool:
        """Return whether the session has not ended."""
        if time.time() >= self._expires or (self._access is not None and self._access.has_ended):
            return False
        if self._is_signed_in is None or time.monotonic() - self._checked_at < KEEPALIVE_INTERVAL_S:
            return True
        self._checked_at = time.monotonic()
        return await self._is_signed_in()

    def close(self) -> None:
        """Stop watching the session."""
        if self._access is not None:
            self._access.close()


class LiveUpdates:
    """Sends changed pages to the open event streams of one process."""

    def __init__(self, site: DashboardSite) -> None:
        self._site = site
        self._watched: dict[tuple[str, ...], WatchedPage] = {}
        self._loop: asyncio.Task[None] | None = None
        self._change_token = ""
        self._render_budget = RenderBudget()
        self._maintained_at = 0.0

    @property
    def stream_count(self) -> int:
        """The number of open event streams in this process."""
        return sum(len(page.viewers) for page in self._watched.values())

    async def stream_page(
        self,
        request: PageRequest,
        function: PageFunction,
        version: str,
        is_signed_in: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yield server-sent events with new content of a page, for a viewer who has `version` of it.

        `page` has new content, `unavailable` and `available` say whether the database answers, and
        `session_ended` is the last event, within a second after the session has ended. `is_signed_in` asks
        the host application whether its user is still signed in, every 15 seconds.
        """
        key = get_page_cache_key(request)
        page = self._watched.setdefault(key, WatchedPage(request, function))
        changed = asyncio.Event()
        changed.set()
        page.viewers.add(changed)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run_update_loop(), name="dashboard-live")
        session_watch = SessionWatch(self._site, request, changed, is_signed_in)
        shown_problem: str | None = None
        try:
            yield b"retry: %d\n\n" % RECONNECT_DELAY_MS
            while await session_watch.is_active():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(session_watch.get_wait_s()):
                        await changed.wait()
                changed.clear()
                if not await session_watch.is_active():
                    break
                if page.version and page.version != version:
                    version = page.version
                    html = page.html.replace(FORM_TOKEN_PLACEHOLDER, mask_form_token(request.session.token))
                    yield _encode_sse_event("page", {"html": html}, version)
                else:
                    yield b": keep-alive\n\n"
                # After the page, because a new page hides the banner that this event shows.
                if page.problem != shown_problem:
                    shown_problem = page.problem
                    event = "unavailable" if shown_problem else "available"
                    yield _encode_sse_event(event, {"message": shown_problem}, version)
            yield _encode_sse_event("session_ended", {"message": "Your session has ended."}, version)
        finally:
            session_watch.close()
            page.viewers.discard(changed)
            if not page.viewers and self._watched.get(key) is page:
                del self._watched[key]

    async def _run_update_loop(self) -> None:
        while self._watched:
            try:
                await self._advance_bulk_actions()
                await self._mark_pages_stale_if_changed()
                problem = None
            except HoldfastError:
                problem = "The database does not respond. Retrying…"
            for page in sorted(self._watched.values(), key=lambda page: page.rendered_at):
                if problem or page.problem or (page.is_render_due() and self._render_budget.allows_render()):
                    started_at = time.monotonic()
                    await self._render_watched_page(page, problem)
                    self._render_budget.record_render(time.monotonic() - started_at)
            await asyncio.sleep(CHANGE_POLL_INTERVAL_S)

    async def _advance_bulk_actions(self) -> None:
        """Run the maintenance that advances bulk actions, because workers do so less often."""
        if time.monotonic() - self._maintained_at <= MAINTENANCE_INTERVAL_S:
            return
        self._maintained_at = time.monotonic()
        for site in self._site.shard_sites.values():
            with contextlib.suppress(DatabaseError, TimeoutError):  # the page says that it does not answer
                async with asyncio.timeout(SHARD_TOKEN_TIMEOUT_S):
                    await _run_site_maintenance(site)
        if not self._site.shard_sites:
            await _run_site_maintenance(self._site)

    async def _mark_pages_stale_if_changed(self) -> None:
        """Mark every watched page as stale if the database has changed since the last poll."""
        token = ""
        for site in self._site.shard_sites.values():
            token += await _read_shard_token(site)
        if not self._site.shard_sites:
            async with self._site.transaction() as connection:
                token = await overview.get_database_change_token(connection)
        reads = self._site.services.get_replica_reads()
        if reads.has_replica:  # a change reaches the replica later than the primary
            token += (await reads.run_read(self._site.open_transaction, overview.get_database_change_token))[
                0
            ]
        if token != self._change_token:
            self._change_token = token
            for page in self._watched.values():
                page.is_stale = True

    async def _render_watched_page(self, page: WatchedPage, problem: str | None) -> None:
        started_at = time.monotonic()
        page.is_stale = False
        try:
            if problem is None:
                html = await self.render_content(page.request, page.function)
                page.html, page.version = html, hashlib.sha256(html.encode()).hexdigest()[:16]
        except HoldfastError as error:
            problem = f"This page could not be updated: {error.message}"
        except Exception:
            # One page that cannot be rendered must not stop the others.
            _log.exception("page %s could not be rendered", page.request.path)
            problem = "This page could not be updated. The error was logged."
        page.rendered_at = time.monotonic()
        duration_s = page.rendered_at - started_at
        page.pause_s = min(max(CHANGE_POLL_INTERVAL_S / 2, 10 * duration_s), MAX_RENDER_PAUSE_S)
        page.problem = problem
        page.notify_viewers()

    async def render_content(self, request: PageRequest, function: PageFunction) -> str:
        """Render the content of a page, with a placeholder for each user's form token."""
        page = await self._site.load_page(request, function)
        html = self._site.render_content(request, page)
        html = html.replace(request.session.token, FORM_TOKEN_PLACEHOLDER)
        self._site.cache_page_html(request, html)
        return html


async def _run_site_maintenance(site: DashboardSite) -> None:
    async with site.transaction(write=True) as connection:
        await maintenance.tick_operations(connection)
        await alerts.evaluate_alerts(connection)


async def _read_shard_token(site: DashboardSite) -> str:
    """Return the change token of one shard, or that it does not answer, which changes the page too."""
    try:
        async with asyncio.timeout(SHARD_TOKEN_TIMEOUT_S), site.transaction() as connection:
            return await overview.get_database_change_token(connection)
    except (DatabaseError, TimeoutError):
        return " missing "


def _encode_sse_event(event: str, body: dict[str, str | None], version: str) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (version.encode(), event.encode(), msgspec.json.encode(body))
