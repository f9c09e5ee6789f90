"""Keeps messages invisible while their functions run, from the heartbeat's thread.

User code on the worker's loop cannot stop it. It renews every quarter of a consumer's vt, with a connection
that it opens when there is something to keep. A message that was read again is lost: its function is stopped
and nothing of it is accepted. When the database cannot be reached, functions are stopped before their vt
ends by our own clock: nobody else can have the message by then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from holdfast import telemetry
from holdfast.consumers import Consumer
from holdfast.engine import consuming
from holdfast.engine.connection import Connection, connected
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.worker.deliveries import Delivery
from holdfast.worker.heartbeat import SHARE, TICK

ALL_TOGETHER, ONE_ALONE = timedelta(milliseconds=500), timedelta(milliseconds=50)
IDLE_SECONDS = 30.0
_log = logging.getLogger("holdfast.worker")


class Visibility:
    def __init__(self, url: Secret, settings: Settings, deliveries: Callable[[], list[Delivery]]) -> None:
        self._url = url
        self._settings = settings
        self._deliveries = deliveries
        self.worker_loop: asyncio.AbstractEventLoop | None = None

    async def keep(self, ended: threading.Event) -> None:
        """Until `ended`. Runs in the heartbeat's thread."""
        guard = asyncio.create_task(self._guard(ended))
        try:
            while not ended.is_set():
                await self._keep_what_is_due(ended)
                await asyncio.sleep(TICK)
        finally:
            guard.cancel()

    async def _guard(self, ended: threading.Event) -> None:
        """Beside the renewals, because a login or a call may hang for longer than a vt."""
        while not ended.is_set():
            self._stop_what_may_be_lost()
            await asyncio.sleep(TICK)

    async def _keep_what_is_due(self, ended: threading.Event) -> None:
        if not self._due():
            return
        try:
            async with connected(self._url, self._settings) as connection:
                await self._keep_while_connected(connection, ended)
        except HoldfastError as problem:
            telemetry.emit("database.away", error=str(problem), retry_in=TICK)
        except Exception:
            _log.exception("keeping messages invisible failed and goes on")

    async def _keep_while_connected(self, connection: Connection, ended: threading.Event) -> None:
        used_at = time.monotonic()
        while not ended.is_set() and time.monotonic() < used_at + IDLE_SECONDS:
            for consumer, deliveries in self._due().items():
                used_at = time.monotonic()
                patience = max(0.1, min(d.must_stop_at for d in deliveries) - used_at)
                await asyncio.wait_for(self._renew(connection, consumer, deliveries), patience)
            await asyncio.sleep(TICK)

    def _due(self) -> dict[Consumer[object], list[Delivery]]:
        """All messages of each consumer that has one to renew."""
        by_consumer: dict[Consumer[object], list[Delivery]] = {}
        for delivery in self._deliveries():
            if delivery.kept:
                by_consumer.setdefault(delivery.consumer, []).append(delivery)
        now = time.monotonic()
        return {
            consumer: deliveries
            for consumer, deliveries in by_consumer.items()
            if any(now >= d.renewed_at + consumer.vt.total_seconds() * SHARE for d in deliveries)
        }

    async def _renew(
        self, connection: Connection, consumer: Consumer[object], deliveries: list[Delivery]
    ) -> None:
        """All in one statement. If a user's transaction has one of them locked, each by itself."""
        if not await self._extend(connection, consumer, deliveries, ALL_TOGETHER):
            for delivery in deliveries:
                if delivery.kept:
                    await self._extend(connection, consumer, [delivery], ONE_ALONE)

    async def _extend(
        self,
        connection: Connection,
        consumer: Consumer[object],
        deliveries: list[Delivery],
        patience: timedelta,
    ) -> bool:
        sent_at = time.monotonic()
        # First the mark, then the look: the consumer's loop ends a delivery and looks for the mark.
        for delivery in deliveries:
            delivery.renewing = True
        kept = [delivery for delivery in deliveries if delivery.kept]
        receipts = [delivery.receipt for delivery in kept]
        try:
            ours = await consuming.extend(
                connection, consumer.queue, receipts, consumer.vt, patience=patience
            )
        except NotFoundError:  # the queue was dropped, and all messages with it
            ours = set[int]()
        finally:
            for delivery in deliveries:
                delivery.renewing = False
        if ours is None:
            return False
        for delivery in kept:
            if delivery.message.id in ours:
                delivery.renewed_at = sent_at
            else:
                self._stop(delivery, "read again by somebody else, or gone")
        return True

    def _stop_what_may_be_lost(self) -> None:
        now = time.monotonic()
        for delivery in self._deliveries():
            if delivery.kept and now >= delivery.must_stop_at:
                self._stop(delivery, "not renewed in time")

    def _stop(self, delivery: Delivery, reason: str) -> None:
        if delivery.finishing or not delivery.stop(reason):
            return
        telemetry.emit("message.lost", queue=delivery.message.queue, message=delivery.message.id)
        loop, runner = self.worker_loop, delivery.runner
        if loop is not None and runner is not None and not loop.is_closed():
            loop.call_soon_threadsafe(runner.cancel, reason)
