"""Pages that stay true while somebody looks: one stream per visible page, one question a second for all.

While anybody watches, a single loop asks the database whether anything at all was written since the last
look (one statement, no table is touched). If so, each page that is watched is made once, however many watch
it, and sent to them if it changed. A frame is the whole living part of a page, so one that was missed
costs nothing: the next one is complete. A stream that comes back says what it has and is sent the rest.

Making a page may take long under load: a page is made again no sooner than after ten times as long as it
took, and never more than four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from holdfast.engine import insight
from holdfast.errors import HoldfastError
from holdfast.server.dashboard.site import Page, Site, View, place_of

LOOK_SECONDS = 0.5
UPKEEP_SECONDS = 2.0
PING_SECONDS = 15.0
OLDEST_SECONDS = 20.0  # times pass even if nothing happens: "quiet" and "lost" come by themselves
TOKEN = "%%token%%"  # noqa: S105  (stands for each visitor's own in what they share)

_log = logging.getLogger("holdfast.server.dashboard")
Make = Callable[[View], Awaitable[Page]]


class Watched:
    """One page, as those see it who may see the same."""

    def __init__(self, view: View, make: Make) -> None:
        self.view = view
        self.make = make
        self.html = ""
        self.mark = ""
        self.problem: str | None = None
        self.viewers: set[asyncio.Event] = set()
        self.made_at = float("-inf")
        self.pause = LOOK_SECONDS
        self.stale = True

    def due(self) -> bool:
        age = time.monotonic() - self.made_at
        return (self.stale and age >= self.pause) or age >= max(OLDEST_SECONDS, self.pause)

    def told(self) -> None:
        for viewer in self.viewers:
            viewer.set()


class Live:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._watched: dict[tuple[str, ...], Watched] = {}
        self._loop: asyncio.Task[None] | None = None
        self._pulse = ""
        self._upkeep_at = 0.0

    @property
    def viewers(self) -> int:
        return sum(len(one.viewers) for one in self._watched.values())

    async def stream(self, view: View, make: Make, have: str) -> AsyncGenerator[bytes]:
        """Frames for one viewer: `page` with the new living part, `away` while the database is."""
        one = self._watched.setdefault(place_of(view), Watched(view, make))
        changed = asyncio.Event()
        changed.set()
        one.viewers.add(changed)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run(), name="dashboard-live")
        yield b"retry: 1500\n\n"
        told: str | None = None
        try:
            while time.time() < view.session.expires:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PING_SECONDS):
                        await changed.wait()
                changed.clear()
                if one.problem != told:
                    told = one.problem
                    yield _frame("away" if told else "back", {"message": told}, have)
                if one.mark and one.mark != have:
                    have = one.mark
                    html = one.html.replace(TOKEN, view.session.token)
                    yield _frame("page", {"html": html}, have)
                else:
                    yield b": here\n\n"
            yield _frame("end", {"message": "Your session has ended."}, have)
        finally:
            one.viewers.discard(changed)
            if not one.viewers and self._watched.get(place_of(view)) is one:
                del self._watched[place_of(view)]

    async def _run(self) -> None:
        while self._watched:
            try:
                await self._look()
                problem = None
            except HoldfastError:
                problem = "The database does not answer. Trying again."
            for one in list(self._watched.values()):
                if problem or one.problem or one.due():
                    await self._make(one, problem)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        """Note whether anything was written. Also lends a hand to bulk actions, which tick drives slowly."""
        if time.monotonic() - self._upkeep_at > UPKEEP_SECONDS:
            self._upkeep_at = time.monotonic()
            async with self._site.transaction(write=True) as connection:
                await insight.tick_views(connection)
        async with self._site.transaction() as connection:
            pulse = await insight.pulse(connection)
        if pulse != self._pulse:
            self._pulse = pulse
            for one in self._watched.values():
                one.stale = True

    async def _make(self, one: Watched, problem: str | None) -> None:
        began = time.monotonic()
        one.stale = False
        try:
            if problem is None:
                html = await self.render(one.view, one.make)
                one.html, one.mark = html, hashlib.sha256(html.encode()).hexdigest()[:16]
        except HoldfastError as trouble:
            problem = f"This page could not be brought up to date: {trouble.message}"
        except Exception:
            # One page that cannot be made must not stop the others.
            _log.exception("the page %s could not be made", one.view.path)
            problem = "This page could not be brought up to date. It was logged."
        one.made_at = time.monotonic()
        one.pause = min(max(LOOK_SECONDS / 2, 10 * (one.made_at - began)), 30.0)
        one.problem = problem
        one.told()

    async def render(self, view: View, make: Make) -> str:
        """The living part, with a mark where each visitor's own form token goes."""
        async with self._site.transaction() as connection:
            view.connection = connection
            page = await make(view)
        html = self._site.render(view, page, fragment=True)
        self._site.remember(view, html.replace(view.session.token, TOKEN))
        return html.replace(view.session.token, TOKEN)


def _frame(event: str, body: dict[str, str | None], mark: str) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (mark.encode(), event.encode(), msgspec.json.encode(body))
