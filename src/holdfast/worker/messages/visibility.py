"""The worker's side of visibility renewal: messages stay invisible while consumers process them.

The heartbeat process renews them (renewal.py), so neither user code on the event loop nor a C call that holds
the GIL can stop the renewals. It receives every message before the consumer's function starts. A message that
another reader has read is lost: its function is stopped and its outcome is refused. When the database cannot
be reached, functions are stopped before their visibility timeout ends by the worker's clock, because another
reader could receive the message after that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from holdfast import telemetry
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.framing import encode_frame
from holdfast.worker.heartbeat_protocol import LeasedMessage, MessageRenewals, encode_message_numbers
from holdfast.worker.messages.deliveries import Delivery

MESSAGE_DROP_TIMEOUT_S = 1.0  # longer than a renewal waits for a row; a dead process has no renewal in flight


class VisibilityRenewalClient:
    """Sends messages to the heartbeat process, and stops consumers whose messages are lost."""

    def __init__(self, deliveries: Callable[[], list[Delivery]]) -> None:
        self._deliveries = deliveries
        self.send: Callable[[bytes], None] = lambda _: None  # sends to the heartbeat process; thread-safe
        self.worker_loop: asyncio.AbstractEventLoop | None = None
        self._drops_in_progress: dict[int, asyncio.Event] = {}

    # From the worker's loop, and from user code

    def hold_messages(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self.send(_encode_messages(deliveries))

    def drop_messages(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self.send(
                encode_frame(
                    protocol.DROP_MESSAGES_FRAME_TYPE,
                    encode_message_numbers(delivery.number for delivery in deliveries),
                )
            )

    async def drop_message_and_wait(self, delivery: Delivery) -> None:
        """Stop renewing a message, and wait until no renewal of the message is in flight.

        A renewal in flight would undo a shorter delay.
        """
        confirmed = self._drops_in_progress[delivery.number] = asyncio.Event()
        self.drop_messages([delivery])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MESSAGE_DROP_TIMEOUT_S):
                await confirmed.wait()
        del self._drops_in_progress[delivery.number]

    # In the heartbeat's thread

    @property
    def has_messages(self) -> bool:
        return any(delivery.needs_renewal for delivery in self._deliveries())

    def encode_current_messages(self) -> bytes:
        """Encode all current messages for a new heartbeat process."""
        messages = [delivery for delivery in self._deliveries() if delivery.needs_renewal]
        return _encode_messages(messages) if messages else b""

    def apply_renewals(self, body: bytes) -> None:
        renewals = msgspec.msgpack.decode(body, type=MessageRenewals)
        if renewals.dropped and self.worker_loop is not None and not self.worker_loop.is_closed():
            self.worker_loop.call_soon_threadsafe(self._confirm_drops, renewals.dropped)
        if renewals.renewed or renewals.lost:
            deliveries = {delivery.number: delivery for delivery in self._deliveries()}
            for number in renewals.renewed:
                if number in deliveries:
                    deliveries[number].renewed_at = renewals.sent_at
            for number in renewals.lost:
                if number in deliveries:
                    self._stop_delivery(deliveries[number], "another reader received it, or it was deleted")

    def _confirm_drops(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._drops_in_progress:
                self._drops_in_progress[number].set()

    def stop_unrenewed_deliveries(self, now: float) -> None:
        for delivery in self._deliveries():
            if delivery.needs_renewal and now >= delivery.lease_safe_until:
                self._stop_delivery(delivery, "its visibility was not renewed in time")

    def _stop_delivery(self, delivery: Delivery, reason: str) -> None:
        if delivery.finishing or not delivery.stop(reason):
            return
        self.drop_messages([delivery])
        telemetry.emit("message.lease_lost", queue=delivery.message.queue, message=delivery.message.id)
        loop, runner = self.worker_loop, delivery.runner
        if loop is not None and runner is not None and not loop.is_closed():
            loop.call_soon_threadsafe(runner.cancel, reason)


def _encode_messages(deliveries: Sequence[Delivery]) -> bytes:
    messages = [
        LeasedMessage(d.number, d.message.queue, d.receipt, d.consumer.vt.total_seconds(), d.renewed_at)
        for d in deliveries
    ]
    return encode_frame(protocol.HOLD_MESSAGES_FRAME_TYPE, msgspec.msgpack.encode(messages))
