"""Create the contexts of one worker's tasks and write the log lines that they collect.

The worker calls `start` before the first task, `create_context` for each claimed task, `write_log_lines`
before it hands in an outcome, and `stop` after the last task.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.engine.connection import Database
from holdfast.engine.leases import LeasedTask
from holdfast.tracing import Tracing, get_tracing
from holdfast.worker.context import FileGateway, TaskContext
from holdfast.worker.gateway import DatabaseGateway, EngineGateway
from holdfast.worker.log_writer import LogWriter, capture_log_records


class ContextFactory:
    def __init__(self, database: Database, *, state: Any = None, files: FileGateway | None = None) -> None:
        self.state = state
        self.files = files
        self._database = database
        self._log_writer = LogWriter(database)
        self._gateway: EngineGateway | None = None
        self._log_capture: AbstractContextManager[None] | None = None

    @property
    def every_task_needs_context(self) -> bool:
        """Whether every task needs a context, because log records are captured."""
        settings = self._database.settings
        return settings.capture_logs != "off"

    @property
    def tracing(self) -> Tracing | None:
        return get_tracing(self._database.settings.tracing)

    def start(self) -> None:
        if self._gateway is None:
            self._gateway = DatabaseGateway(self._database, asyncio.get_running_loop())
            self._log_writer.start()
            self._log_capture = capture_log_records(self._database.settings.capture_logs)
            self._log_capture.__enter__()

    async def stop(self) -> None:
        if self._log_capture is not None:
            self._log_capture.__exit__(None, None, None)
            self._log_capture = None
        await self._log_writer.stop()

    def create_context(self, claimed: LeasedTask) -> TaskContext:
        return TaskContext(
            **get_context_fields(claimed),
            deadline=datetime.now(UTC) + timedelta(seconds=claimed.timeout_s),
            state=self.state,
            gateway=self._gateway,
            files=self.files,
            on_log=self._log_writer.announce_lines,
        )

    async def write_log_lines(self, context: TaskContext) -> None:
        """Write the log lines of an attempt, before its outcome is sent.

        Readers who see the outcome also see the log lines.
        """
        if context.log_buffer:
            await self._log_writer.flush_lines(context)


def get_context_fields(claimed: LeasedTask) -> dict[str, Any]:
    """Return the fields of a task context that are copied from the claimed task."""
    task_id = str(claimed.id)
    return {
        "task_id": task_id,
        "job_id": task_id if claimed.job_id is None else str(claimed.job_id),
        "attempt": claimed.attempt,
        "owner": claimed.owner,
        "name": claimed.name or claimed.type,
        "lease": claimed,
    }
