"""Tell open event streams that the right to them has ended, within a second.

A request is authenticated once, but a stream stays open for hours. Every open stream therefore watches the
service key or the dashboard session that opened it. One statement twice a second asks the database about all
of them, however many streams are open, and also works behind a connection pooler. While the database does
not respond, streams stay open: without it, there is nothing to send.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from uuid import UUID

from holdfast.engine import sessions
from holdfast.engine.connection import Database
from holdfast.errors import DatabaseUnavailableError, HoldfastError

ACCESS_POLL_INTERVAL_S = 0.5
SESSION_USE_INTERVAL_S = 60.0
_log = logging.getLogger("holdfast.server.api")


class WatchedAccess:
    """The right of one open stream. `has_ended` is True after its key or session has ended.

    Close it when the stream ends. `on_end` is called once, in the event loop.
    """

    def __init__(self, monitor: AccessMonitor, subject: str | UUID, on_end: Callable[[], None]) -> None:
        self.subject = subject
        self.has_ended = False
        self._monitor = monitor
        self._on_end = on_end

    def mark_ended(self) -> None:
        """Record that the right has ended. Only `AccessMonitor` calls this method."""
        if not self.has_ended:
            self.has_ended = True
            self._on_end()

    def close(self) -> None:
        """Stop watching. A second call has no effect."""
        self._monitor.stop_watching(self)


class AccessMonitor:
    """Watches the service keys and dashboard sessions of all open streams of one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watched: dict[str | UUID, set[WatchedAccess]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._use_recorded_at = time.monotonic()

    @property
    def watched_subjects(self) -> list[str | UUID]:
        """The service keys (by prefix) and sessions (by id) that open streams depend on."""
        return list(self._watched)

    def watch(self, subject: str | UUID, on_end: Callable[[], None]) -> WatchedAccess:
        """Watch a service key (by its prefix) or a dashboard session (by its id), until it is closed."""
        access = WatchedAccess(self, subject, on_end)
        self._watched.setdefault(subject, set()).add(access)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run_poll_loop(), name="stream access")
        return access

    def stop_watching(self, access: WatchedAccess) -> None:
        """Stop watching the right of a stream. Streams call `WatchedAccess.close` instead."""
        same = self._watched.get(access.subject)
        if same is not None:
            same.discard(access)
            if not same:
                del self._watched[access.subject]

    def end_session(self, session_id: UUID) -> None:
        """Close the streams of a session at once, for a session that this process has just ended."""
        for access in list(self._watched.get(session_id, ())):
            access.mark_ended()

    async def stop(self) -> None:
        """Stop the background task."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            await asyncio.wait({loop})

    async def _run_poll_loop(self) -> None:
        # Nothing is awaited between the last check of `_watched` and the return. A new stream therefore
        # either is seen here or starts a new loop.
        while self._watched:
            await asyncio.sleep(ACCESS_POLL_INTERVAL_S)
            try:
                await self._poll_ended_access()
            except DatabaseUnavailableError:  # reported once for the process (engine.availability)
                pass
            except HoldfastError as error:
                _log.warning("access of event streams could not be checked: %s", error)
            except Exception:
                _log.exception("access of event streams could not be checked")

    async def _poll_ended_access(self) -> None:
        keys = [subject for subject in self._watched if isinstance(subject, str)]
        session_ids = [subject for subject in self._watched if isinstance(subject, UUID)]
        if not keys and not session_ids:
            return
        async with self._database.connection() as connection:
            ended_keys, ended_sessions = await sessions.list_ended_access(connection, keys, session_ids)
            if session_ids and time.monotonic() - self._use_recorded_at >= SESSION_USE_INTERVAL_S:
                self._use_recorded_at = time.monotonic()
                await sessions.record_session_use(connection, session_ids)
        ended: set[str | UUID] = {*ended_keys, *ended_sessions}
        for subject in ended:
            for access in list(self._watched.get(subject, ())):
                access.mark_ended()
