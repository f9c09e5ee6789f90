"""Makes the contexts of one worker, and sees to what they have said.

For the worker: `start` before the first task, `make` for each claimed one, `ended` before its outcome is
handed in, `stop` after the last.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.engine.connection import Database
from holdfast.engine.leases import Claimed
from holdfast.tracing import Tracing, tracing_of
from holdfast.worker.context import Context, Files
from holdfast.worker.desk import DatabaseDesk, Desk
from holdfast.worker.logs import LogWriter, captured


class Contexts:
    def __init__(self, database: Database, *, state: Any = None, files: Files | None = None) -> None:
        self.state = state
        self.files = files
        self._database = database
        self._writer = LogWriter(database)
        self._desk: Desk | None = None
        self._capturing: AbstractContextManager[None] | None = None

    @property
    def capturing(self) -> bool:
        """Whether every task needs a context, also those that do not ask for one."""
        settings = self._database.settings
        return settings.capture_logs != "off" or settings.sentry_dsn is not None

    @property
    def tracing(self) -> Tracing | None:
        return tracing_of(self._database.settings.tracing)

    def start(self) -> None:
        if self._desk is None:
            self._desk = DatabaseDesk(self._database, asyncio.get_running_loop())
            self._writer.start()
            self._capturing = captured(self._database.settings.capture_logs)
            self._capturing.__enter__()

    async def stop(self) -> None:
        if self._capturing is not None:
            self._capturing.__exit__(None, None, None)
            self._capturing = None
        await self._writer.stop()

    def make(self, claimed: Claimed) -> Context:
        task_id = str(claimed.id)
        return Context(
            task_id=task_id,
            job_id=task_id if claimed.job_id is None else str(claimed.job_id),
            attempt=claimed.attempt,
            deadline=datetime.now(UTC) + timedelta(seconds=claimed.timeout_s),
            state=self.state,
            owner=claimed.owner,
            name=claimed.name or claimed.type,
            lease=claimed,
            desk=self._desk,
            files=self.files,
            said=self._writer.note,
        )

    async def ended(self, context: Context) -> None:
        """What the attempt said is written before its outcome is known."""
        if context.lines:
            await self._writer.flush(context)
