"""Alerts in the API process: evaluate the rules, and send notifications that no worker takes.

Alerts matter most when all workers are gone. So each API process evaluates the rules too (all processes
together once in half a minute), and claims notifications that have waited for 30 seconds, as an external
worker would: the lease of the task decides who sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from typing import Final

from holdfast.alerts.delivery import (
    ALERT_QUEUE,
    ALERT_TASK_TYPE,
    AlertSender,
    deliver_notification,
    format_delivery_error,
)
from holdfast.engine import alerts, external_workers, leases
from holdfast.engine.connection import Database
from holdfast.engine.external_workers import ExternalTask
from holdfast.errors import LeaseLostError, Reject
from holdfast.settings import Settings
from holdfast.worker.background import BackgroundService

CHECK_INTERVAL_S: Final = 10.0
LATE_NOTIFICATION_S: Final = 30.0
MAX_NOTIFICATIONS_AT_ONCE: Final = 10
DELIVERY_TIMEOUT_S: Final = 45.0  # less than the lease of 60 seconds


class AlertService(BackgroundService):
    """Evaluates alert rules and sends late notifications, at intervals."""

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__()
        self._database = database
        self._settings = settings
        self._worker = f"api-alerts-{socket.gethostname()}-{os.getpid()}"

    async def run_round(self) -> None:
        await asyncio.sleep(random.uniform(0.7, 1.3) * CHECK_INTERVAL_S)  # noqa: S311  (not all at once)
        async with self._database.connection() as connection:
            await alerts.evaluate_alerts(connection)
        await self.send_late_notifications()

    async def send_late_notifications(self) -> int:
        """Send the notifications that no worker has taken for 30 seconds, and return their number."""
        async with self._database.connection() as connection:
            if not await alerts.has_late_alert_notifications(connection, LATE_NOTIFICATION_S):
                return 0
            tasks = await external_workers.claim_tasks(
                connection, self._worker, MAX_NOTIFICATIONS_AT_ONCE, [ALERT_TASK_TYPE], [ALERT_QUEUE]
            )
        try:
            sender = AlertSender(self._settings)
            await asyncio.gather(*(self._send(sender, task) for task in tasks))
        finally:  # this process is no worker: it must not be listed as one that vanished
            async with self._database.connection() as connection:
                await leases.mark_worker_stopped(connection, self._worker)
        return len(tasks)

    async def _send(self, sender: AlertSender, task: ExternalTask) -> None:
        lease = leases.Lease(id=task.id, attempt=task.attempt, nonce=task.nonce)
        failure: Exception | None = None
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                await deliver_notification(self._database, sender, task.args)
        except Exception as error:
            failure = error
        with contextlib.suppress(LeaseLostError):
            async with self._database.connection() as connection:
                if failure is None:
                    await external_workers.complete_task(connection, lease, None)
                    return
                await external_workers.fail_task(
                    connection,
                    lease,
                    error=format_delivery_error(failure),
                    error_type=type(failure).__name__,
                    traceback=None,
                    retry=not isinstance(failure, Reject),
                    retry_after_s=None,
                )
