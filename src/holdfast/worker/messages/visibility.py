"""Messages in the hands of consumers stay invisible while their functions run: the worker's side.

The heartbeat process renews them (heartbeat_messages.py), which neither user code on the worker's loop nor a
C call that holds the GIL can stop. It is told of every message before its function starts. A message that was
read again is lost: its function is stopped and nothing of it is accepted. When the database cannot be
reached, functions are stopped before their vt ends by our own clock: nobody else can have it by then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from holdfast import telemetry
from holdfast.worker.heartbeat_wire import HeldMessage, Sight, frame, numbers
from holdfast.worker.messages.deliveries import Delivery

LET_GO_SECONDS = 1.0  # longer than a renewal waits for a row; if the process is gone, so are its renewals


class Visibility:
    def __init__(self, deliveries: Callable[[], list[Delivery]]) -> None:
        self._deliveries = deliveries
        self.send: Callable[[bytes], None] = lambda _: None  # to the heartbeat process, from any thread
        self.worker_loop: asyncio.AbstractEventLoop | None = None
        self._leaving: dict[int, asyncio.Event] = {}

    # From the worker's loop, and from user code

    def hold(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self.send(_holding(deliveries))

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self.send(frame(b"L", numbers(delivery.number for delivery in deliveries)))

    async def let_go(self, delivery: Delivery) -> None:
        """Drop it, and wait until no renewal is on its way that would undo a shorter rest."""
        gone = self._leaving[delivery.number] = asyncio.Event()
        self.drop([delivery])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LET_GO_SECONDS):
                await gone.wait()
        del self._leaving[delivery.number]

    # In the heartbeat's thread

    @property
    def busy(self) -> bool:
        return any(delivery.kept for delivery in self._deliveries())

    def again(self) -> bytes:
        """What a new process has to know."""
        kept = [delivery for delivery in self._deliveries() if delivery.kept]
        return _holding(kept) if kept else b""

    def hear(self, body: bytes) -> None:
        news = msgspec.msgpack.decode(body, type=Sight)
        if news.let_go and self.worker_loop is not None and not self.worker_loop.is_closed():
            self.worker_loop.call_soon_threadsafe(self._gone, news.let_go)
        if news.kept or news.lost:
            held = {delivery.number: delivery for delivery in self._deliveries()}
            for number in news.kept:
                if number in held:
                    held[number].renewed_at = news.sent_at
            for number in news.lost:
                if number in held:
                    self._stop(held[number], "read again by somebody else, or gone")

    def _gone(self, let_go: Sequence[int]) -> None:
        for number in let_go:
            if number in self._leaving:
                self._leaving[number].set()

    def stop_what_may_be_lost(self, now: float) -> None:
        for delivery in self._deliveries():
            if delivery.kept and now >= delivery.must_stop_at:
                self._stop(delivery, "not renewed in time")

    def _stop(self, delivery: Delivery, reason: str) -> None:
        if delivery.finishing or not delivery.stop(reason):
            return
        self.drop([delivery])
        telemetry.emit("message.lost", queue=delivery.message.queue, message=delivery.message.id)
        loop, runner = self.worker_loop, delivery.runner
        if loop is not None and runner is not None and not loop.is_closed():
            loop.call_soon_threadsafe(runner.cancel, reason)


def _holding(deliveries: Sequence[Delivery]) -> bytes:
    held = [
        HeldMessage(d.number, d.message.queue, d.receipt, d.consumer.vt.total_seconds(), d.renewed_at)
        for d in deliveries
    ]
    return frame(b"M", msgspec.msgpack.encode(held))
