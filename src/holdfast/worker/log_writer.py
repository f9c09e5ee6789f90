"""Write log lines to the database: those of all attempts together, a few times per second.

The lines of an attempt are written before its outcome, so that a reader who sees the job ended also sees its
lines. Lines never delay anything: when the database is unavailable they wait in memory, up to a bound, and
outcomes do not wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from holdfast.engine.connection import Database
from holdfast.engine.leases import Lease
from holdfast.engine.logs import write_logs
from holdfast.errors import DatabaseFullError, DatabaseReadOnlyError, DatabaseUnavailableError, HoldfastError
from holdfast.worker.background import BackgroundService
from holdfast.worker.context import TaskContext, current
from holdfast.worker.log_buffer import BufferedLogLine

LOG_WRITE_INTERVAL_S: Final = 0.25
LOG_FLUSH_TIMEOUT_S: Final = 2.0
MAX_ATTEMPTS_WITH_UNWRITTEN_LINES: Final = 1_000  # while the database is unavailable
LineBatch = list[tuple[Lease, list[BufferedLogLine]]]
_log = logging.getLogger("holdfast.worker")


class LogWriter(BackgroundService):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._ended_by_context: dict[TaskContext, bool] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._has_lines = asyncio.Event()
        self._flush_requested = asyncio.Event()
        self._worker_loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._worker_loop = asyncio.get_running_loop()
        super().start()

    def announce_lines(self, context: TaskContext) -> None:
        """Tell the writer that an attempt has log lines to write. Thread-safe."""
        if self._worker_loop is not None and not self._worker_loop.is_closed():
            self._worker_loop.call_soon_threadsafe(self._enqueue_context, context, False)

    def _enqueue_context(self, context: TaskContext, ended: bool) -> None:
        self._ended_by_context[context] = ended or self._ended_by_context.get(context, False)
        self._has_lines.set()

    async def flush_lines(self, context: TaskContext) -> None:
        """Write the log lines of an attempt that has ended, and wait for at most 2 seconds."""
        if not context.log_buffer or self._loop is None:
            return
        self._enqueue_context(context, True)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._flush_requested.set()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(LOG_FLUSH_TIMEOUT_S):
                await waiter

    async def stop(self) -> None:
        """Stop the log writer and try once to write the remaining lines."""
        await super().stop()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LOG_FLUSH_TIMEOUT_S):
                await self._write_lines()

    async def run_round(self) -> None:
        await self._has_lines.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOG_WRITE_INTERVAL_S):
                await self._flush_requested.wait()
        self._has_lines.clear()
        self._flush_requested.clear()
        await self._write_lines()

    async def _write_lines(self) -> None:
        ended_by_context, self._ended_by_context = self._ended_by_context, {}
        waiters, self._waiters = self._waiters, []
        lines_by_context = [
            (c, ended, c.log_buffer.take_lines(ended=ended))
            for c, ended in ended_by_context.items()
            if c.log_buffer is not None
        ]
        batch = [(c.lease, lines) for c, _, lines in lines_by_context if c.lease is not None and lines]
        try:
            if batch:
                await self._write_batch(batch)
        except BaseException:
            self._put_lines_back(lines_by_context)
            raise
        finally:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _write_batch(self, batch: LineBatch) -> None:
        try:
            async with self._database.connection() as connection:
                await write_logs(connection, batch)
        except (DatabaseUnavailableError, DatabaseFullError, DatabaseReadOnlyError):
            raise
        except HoldfastError as error:
            # The database refuses the lines and would refuse them again, so write one attempt at a time.
            if len(batch) == 1:
                _log.warning("Log lines of task %s were not stored: %s", batch[0][0].id, error)
                return
            for entry in batch:
                await self._write_batch([entry])

    def _put_lines_back(
        self, lines_by_context: list[tuple[TaskContext, bool, list[BufferedLogLine]]]
    ) -> None:
        for context, ended, lines in lines_by_context[-MAX_ATTEMPTS_WITH_UNWRITTEN_LINES:]:
            if context.log_buffer is not None:
                context.log_buffer.put_lines_back(lines)
                self._enqueue_context(context, ended)


class LogCaptureHandler(logging.Handler):
    """Copies records of the standard logging module to the log of the running attempt."""

    def emit(self, record: logging.LogRecord) -> None:
        context = current.get()
        if context is None or record.name.partition(".")[0] == "holdfast":
            return
        try:
            message = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                message = f"{message}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        except Exception:
            message = str(record.msg)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        if record.levelno < logging.WARNING:
            level = "info" if record.levelno >= logging.INFO else "debug"
        context.log(message, level=level, logger=record.name)  # type: ignore[arg-type]


@contextmanager
def capture_log_records(level: str | None) -> Generator[None]:
    """Copy log records of at least `level` to the running attempt's log while the block runs."""
    if level is None or level == "off":
        yield
        return
    root = logging.getLogger()
    handler = LogCaptureHandler(level.upper())
    previous_level = root.level
    root.addHandler(handler)
    root.setLevel(min(previous_level or handler.level, handler.level))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(previous_level)
