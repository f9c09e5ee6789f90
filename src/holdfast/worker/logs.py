"""Log lines on their way to the database: those of all attempts together, a few times a second.

Before an outcome is handed in, the lines of its attempt are written, so that whoever sees the job ended sees
what it said. Lines are never the reason for anything: when the database is away they wait in memory, up to a
bound, and outcomes do not wait for them.
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
from holdfast.errors import DatabaseAwayError, DatabaseFullError, DatabaseReadOnlyError, HoldfastError
from holdfast.worker.context import Context, current
from holdfast.worker.lines import Line
from holdfast.worker.service import Service

GATHER_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 2.0
MOST_ATTEMPTS: Final = 1_000  # whose lines wait while the database is away
Batch = list[tuple[Lease, list[Line]]]
_log = logging.getLogger("holdfast.worker")


class LogWriter(Service):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._noted: dict[Context, bool] = {}  # whether the attempt has ended
        self._waiters: list[asyncio.Future[None]] = []
        self._bell = asyncio.Event()
        self._hurry = asyncio.Event()
        self._owner: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._owner = asyncio.get_running_loop()
        super().start()

    def note(self, context: Context) -> None:
        """There are lines to write. From any thread."""
        if self._owner is not None and not self._owner.is_closed():
            self._owner.call_soon_threadsafe(self._add, context, False)

    def _add(self, context: Context, ended: bool) -> None:
        self._noted[context] = ended or self._noted.get(context, False)
        self._bell.set()

    async def flush(self, context: Context) -> None:
        """Write what an attempt said, because it has ended. Waits for it, but not for long."""
        if not context.lines or self._loop is None:
            return
        self._add(context, True)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._hurry.set()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await waiter

    async def stop(self) -> None:
        """One last try for what is left."""
        await super().stop()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._write()

    async def step(self) -> None:
        await self._bell.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SECONDS):
                await self._hurry.wait()
        self._bell.clear()
        self._hurry.clear()
        await self._write()

    async def _write(self) -> None:
        noted, self._noted = self._noted, {}
        waiters, self._waiters = self._waiters, []
        taken = [(c, ended, c.lines.take(ended=ended)) for c, ended in noted.items() if c.lines is not None]
        batch = [(c.lease, lines) for c, _, lines in taken if c.lease is not None and lines]
        try:
            if batch:
                await self._write_batch(batch)
        except BaseException:
            self._put_back(taken)
            raise
        finally:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _write_batch(self, batch: Batch) -> None:
        try:
            async with self._database.connection() as connection:
                await write_logs(connection, batch)
        except (DatabaseAwayError, DatabaseFullError, DatabaseReadOnlyError):
            raise
        except HoldfastError as problem:
            # Refused, and it would be refused again: what can be kept is, one attempt at a time.
            if len(batch) == 1:
                _log.warning("log lines of task %s are not kept: %s", batch[0][0].id, problem)
                return
            for each in batch:
                await self._write_batch([each])

    def _put_back(self, taken: list[tuple[Context, bool, list[Line]]]) -> None:
        for context, ended, lines in taken[-MOST_ATTEMPTS:]:
            if context.lines is not None:
                context.lines.put_back(lines)
                self._add(context, ended)


class Capture(logging.Handler):
    """Records of the standard logging module that a task's code emits, as lines of its attempt."""

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
def captured(level: str | None) -> Generator[None]:
    """Keep the records of at least this level while the worker runs; None keeps none."""
    if level is None or level == "off":
        yield
        return
    root = logging.getLogger()
    capture = Capture(level.upper())
    before = root.level
    root.addHandler(capture)
    root.setLevel(min(before or capture.level, capture.level))
    try:
        yield
    finally:
        root.removeHandler(capture)
        root.setLevel(before)
