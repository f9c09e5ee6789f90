"""The shape of every background loop in a worker: starting twice does no harm, `stop` returns when stopped.

A service runs `run_round()` again and again. A round that fails is repeated after a pause that grows and is
jittered, so that a hundred workers do not reconnect in the same millisecond. An unreachable database is
reported once for the whole process (`engine.availability`); any other failure is reported once per service
and then at most once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from typing import Final

from holdfast import telemetry
from holdfast.errors import DatabaseUnavailableError, HoldfastError

MIN_RETRY_PAUSE_S: Final = 0.1
MAX_RETRY_PAUSE_S: Final = 5.0
MAX_RETRY_PAUSE_DOUBLINGS: Final = 10
FAILURE_REPORT_INTERVAL_S: Final = 60.0
_log = logging.getLogger("holdfast.worker")


class ServiceFailureReporter:
    """Reports failures of a part of a worker: the first, then at most one a minute, and the recovery."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._failures = 0
        self._reported_at: float | None = None

    def report_failure(self, error: BaseException | str) -> None:
        self._failures += 1
        now = time.monotonic()
        if isinstance(error, DatabaseUnavailableError):
            return
        if self._reported_at is not None and now - self._reported_at < FAILURE_REPORT_INTERVAL_S:
            return
        self._reported_at = now
        text = str(error)
        if isinstance(error, Exception) and not isinstance(error, HoldfastError):  # a bug: show its place
            text = f"{type(error).__name__}: {error}"
            _log.error("%s failed and is tried again.", self._service, exc_info=error)
        telemetry.emit("worker.service_failed", service=self._service, error=text, failures=self._failures)

    def report_success(self) -> None:
        failures, self._failures = self._failures, 0
        if self._reported_at is not None:
            self._reported_at = None
            telemetry.emit("worker.service_recovered", service=self._service, failures=failures)


class BackgroundService(ABC):
    def __init__(self) -> None:
        self._loop: asyncio.Task[None] | None = None
        self._consecutive_failures = 0
        self._failure_reporter = ServiceFailureReporter(type(self).__name__)
        self.last_error: Exception | None = None  # of the last round, if it failed

    @abstractmethod
    async def run_round(self) -> None:
        """Run one round of the background loop. The loop calls this method again and again."""

    @property
    def is_failing(self) -> bool:
        """Whether the last round failed."""
        return self.last_error is not None

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.create_task(self._run_rounds(), name=type(self).__name__)

    async def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            # Cancel repeatedly: a library may swallow a cancellation that arrives together with its result.
            while not loop.done():
                loop.cancel()
                await asyncio.wait({loop}, timeout=0.2)

    async def _run_rounds(self) -> None:
        while True:
            try:
                await self.run_round()
            except Exception as error:  # if the loop ended here, the worker would be alive and do nothing
                await self._pause_after_error(error)
            else:
                if self.last_error is not None:
                    self._record_recovery()

    async def _pause_after_error(self, error: Exception) -> None:
        self.last_error = error
        self._consecutive_failures += 1
        self._failure_reporter.report_failure(error)
        # Bounded: after an outage of an hour, the power would no longer fit into a float.
        doublings = min(self._consecutive_failures, MAX_RETRY_PAUSE_DOUBLINGS)
        max_pause_s = min(MAX_RETRY_PAUSE_S, MIN_RETRY_PAUSE_S * 2**doublings)
        pause_s = random.uniform(MIN_RETRY_PAUSE_S, max_pause_s)  # noqa: S311  (spreads load, no secret)
        await asyncio.sleep(pause_s)

    def _record_recovery(self) -> None:
        self.last_error = None
        self._consecutive_failures = 0
        self._failure_reporter.report_success()
