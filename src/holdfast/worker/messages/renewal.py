"""Visibility renewal in the heartbeat process: keeps messages invisible while consumers process them.

Each message is renewed every quarter of its visibility timeout, on a connection that is open only while there
are messages. The connection is separate because a renewal waits for a message that the user's own transaction
has locked, and lease renewals must not wait with it. The worker drops a message before it sets a shorter
delay, because a renewal in flight would undo the delay. The renewer confirms the drop when no renewal is in
flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec

from holdfast.engine.connection import Connection, open_connection
from holdfast.engine.messages import consumers as consuming
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.worker import heartbeat_protocol as protocol
from holdfast.worker.heartbeat_protocol import LeasedMessage, MessageRenewals, decode_message_numbers

MESSAGE_RENEWAL_CHECK_INTERVAL_S = 0.1
RENEW_AFTER_VT_SHARE = 0.25
MESSAGE_BATCH_LOCK_TIMEOUT = timedelta(milliseconds=500)
SINGLE_MESSAGE_LOCK_TIMEOUT = timedelta(milliseconds=50)
MAX_IDLE_CONNECTION_S = 30.0
MESSAGE_WORKER_LOST_ERROR_TEXT = "WorkerLost: The worker process ended while it processed the message."


class MessageRenewer:
    """Renews the visibility of the messages that one worker processes.

    `worker_runs` returns False while the worker process is stopped.
    """

    def __init__(self, send: Callable[[bytes, bytes], None], worker_runs: Callable[[], bool]) -> None:
        self._send = send
        self._worker_runs = worker_runs
        self._messages: dict[int, LeasedMessage] = {}
        self._renewed_at: dict[int, float] = {}
        self._next_renewal_at = float("inf")
        self._in_flight: set[int] = set()  # numbers in the renewal request that was sent
        self._dropped_in_flight: list[int] = []
        self._wakeup = asyncio.Event()

    def handle_hold_frame(self, body: bytes) -> None:
        for message in msgspec.msgpack.decode(body, type=list[LeasedMessage]):
            self._messages[message.number] = message
            self._renewed_at[message.number] = message.read_at
            self._next_renewal_at = min(
                self._next_renewal_at, message.read_at + message.vt_s * RENEW_AFTER_VT_SHARE
            )
        self._wakeup.set()

    def handle_stop_renewing_frame(self, body: bytes) -> None:
        numbers = decode_message_numbers(body)
        for number in numbers:
            self._messages.pop(number, None)
            self._renewed_at.pop(number, None)
        self._dropped_in_flight += [number for number in numbers if number in self._in_flight]
        confirmed = [number for number in numbers if number not in self._in_flight]
        if confirmed:
            self._send_renewals(MessageRenewals(sent_at=0.0, dropped=confirmed))

    def take_all_messages(self) -> list[LeasedMessage]:
        """Remove and return all messages, so that their visibility is not renewed any more."""
        messages = list(self._messages.values())
        self._messages.clear()
        self._renewed_at.clear()
        return messages

    async def renew_forever(self, url: Secret, settings: Settings) -> None:
        while True:
            if self._find_due_messages():
                try:
                    async with open_connection(url, settings) as connection:
                        await self._renew_until_idle(connection)
                except HoldfastError as error:
                    self._send(protocol.DATABASE_PROBLEM_FRAME_TYPE, str(error).encode())
                except Exception as error:  # renewing must go on after any error
                    self._send(
                        protocol.DATABASE_PROBLEM_FRAME_TYPE, f"{type(error).__name__}: {error}".encode()
                    )
            await self._wait_for_messages()

    async def _wait_for_messages(self) -> None:
        """Wait until there are messages to renew."""
        if not self._messages:
            self._wakeup.clear()
            await self._wakeup.wait()
        await asyncio.sleep(MESSAGE_RENEWAL_CHECK_INTERVAL_S)

    async def _renew_until_idle(self, connection: Connection) -> None:
        used_at = time.monotonic()
        while time.monotonic() < used_at + MAX_IDLE_CONNECTION_S:
            for (queue, vt_s), messages in self._find_due_messages().items():
                used_at = time.monotonic()
                expires_at = min(self._renewed_at[m.number] for m in messages) + vt_s
                request = self._renew_messages(connection, queue, timedelta(seconds=vt_s), messages)
                async with asyncio.timeout(max(0.5, expires_at - used_at)):
                    await request
            await asyncio.sleep(MESSAGE_RENEWAL_CHECK_INTERVAL_S)

    def _find_due_messages(self) -> dict[tuple[str, float], list[LeasedMessage]]:
        """Group messages by queue and visibility timeout. Return groups with a renewal that is due."""
        now = time.monotonic()
        if now < self._next_renewal_at or not self._worker_runs():
            return {}
        groups: dict[tuple[str, float], list[LeasedMessage]] = {}
        due_at: dict[tuple[str, float], float] = {}
        for message in self._messages.values():
            group = (message.queue, message.vt_s)
            groups.setdefault(group, []).append(message)
            at = self._renewed_at[message.number] + message.vt_s * RENEW_AFTER_VT_SHARE
            due_at[group] = min(due_at.get(group, at), at)
        self._next_renewal_at = min(due_at.values(), default=float("inf"))
        return {group: messages for group, messages in groups.items() if now >= due_at[group]}

    async def _renew_messages(
        self, connection: Connection, queue: str, vt: timedelta, messages: list[LeasedMessage]
    ) -> None:
        """Renew messages in one statement, or one by one if a transaction has locked a message."""
        if not await self._extend_visibility(connection, queue, vt, messages, MESSAGE_BATCH_LOCK_TIMEOUT):
            for message in messages:
                await self._extend_visibility(connection, queue, vt, [message], SINGLE_MESSAGE_LOCK_TIMEOUT)

    async def _extend_visibility(
        self,
        connection: Connection,
        queue: str,
        vt: timedelta,
        messages: list[LeasedMessage],
        lock_timeout: timedelta,
    ) -> bool:
        sent_at = time.monotonic()
        requested = [message for message in messages if message.number in self._messages]
        self._in_flight = {message.number for message in requested}
        receipts = [message.receipt for message in requested]
        renewed_ids: set[int] | None = None
        try:
            renewed_ids = (
                await consuming.extend_visibility(connection, queue, receipts, vt, lock_timeout=lock_timeout)
                if requested
                else set()
            )
        except NotFoundError:  # the queue was dropped, and all messages with it
            renewed_ids = set()
        finally:
            self._in_flight = set()
            dropped, self._dropped_in_flight = self._dropped_in_flight, []
            if dropped:
                self._send_renewals(MessageRenewals(sent_at=sent_at, dropped=dropped))
        if renewed_ids is None:
            return False
        self._apply_renewal(requested, renewed_ids, sent_at)
        return True

    def _apply_renewal(self, requested: list[LeasedMessage], renewed_ids: set[int], sent_at: float) -> None:
        current = [message for message in requested if message.number in self._messages]
        renewed = [message.number for message in current if message.id in renewed_ids]
        lost = [message.number for message in current if message.id not in renewed_ids]
        self._renewed_at.update(dict.fromkeys(renewed, sent_at))
        for number in lost:
            del self._messages[number], self._renewed_at[number]
        if current:
            self._send_renewals(MessageRenewals(sent_at=sent_at, renewed=renewed, lost=lost))

    def _send_renewals(self, renewals: MessageRenewals) -> None:
        self._send(protocol.MESSAGES_RENEWED_FRAME_TYPE, msgspec.msgpack.encode(renewals))


async def return_messages(connection: Connection, messages: list[LeasedMessage], *, released: bool) -> None:
    """Make the messages of a dead worker available to other readers.

    A released message is visible at once. Otherwise it is delayed as after a failure, because it may have
    killed the worker.
    """
    for queue in {message.queue for message in messages}:
        receipts = [message.receipt for message in messages if message.queue == queue]
        with contextlib.suppress(NotFoundError):  # the queue was dropped
            if released:
                await consuming.hide_messages(connection, queue, receipts, timedelta(0))
            else:
                await consuming.retry_messages(connection, queue, receipts, MESSAGE_WORKER_LOST_ERROR_TEXT)
