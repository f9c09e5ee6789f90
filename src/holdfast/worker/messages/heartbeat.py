"""Messages of consumers, kept invisible by the heartbeat process for as long as their functions run.

Renewed every quarter of their vt, with a connection of their own that is opened when there is something to
keep: a message that the user's own transaction has locked is waited for, and leases must not wait with it.
The worker lets a message go before it hands in a rest: a renewal on its way would undo a shorter one, so
the answer comes when there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec

from holdfast.engine.connection import Connection, connected
from holdfast.engine.messages import consumers as consuming
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.worker.heartbeat_wire import HeldMessage, Kind, Sight, numbers_in

TICK = 0.1
SHARE = 0.25  # of a vt, after which it is renewed
ALL_TOGETHER, ONE_ALONE = timedelta(milliseconds=500), timedelta(milliseconds=50)
IDLE_SECONDS = 30.0
WORKER_LOST = "WorkerLost: The worker process ended while the message was handled in it."


class Messages:
    """`awake` tells whether the worker is to be kept for: not while it is stopped."""

    def __init__(self, answer: Callable[[Kind, bytes], None], awake: Callable[[], bool]) -> None:
        self._answer = answer
        self._awake = awake
        self._held: dict[int, HeldMessage] = {}
        self._renewed_at: dict[int, float] = {}
        self._next_due = float("inf")
        self._asking: set[int] = set()  # in the renewal that is on its way
        self._leaving: list[int] = []  # let go meanwhile
        self._bell = asyncio.Event()

    def hold(self, body: bytes) -> None:
        for message in msgspec.msgpack.decode(body, type=list[HeldMessage]):
            self._held[message.number] = message
            self._renewed_at[message.number] = message.read_at
            self._next_due = min(self._next_due, message.read_at + message.vt_s * SHARE)
        self._bell.set()

    def let_go(self, body: bytes) -> None:
        numbers = numbers_in(body)
        for number in numbers:
            self._held.pop(number, None)
            self._renewed_at.pop(number, None)
        self._leaving += [number for number in numbers if number in self._asking]
        free = [number for number in numbers if number not in self._asking]
        if free:
            self._tell(Sight(sent_at=0.0, let_go=free))

    def leave(self) -> list[HeldMessage]:
        """What was still held, and will no longer be."""
        left = list(self._held.values())
        self._held.clear()
        self._renewed_at.clear()
        return left

    async def keep_for_ever(self, url: Secret, settings: Settings) -> None:
        while True:
            if self._due():
                try:
                    async with connected(url, settings) as connection:
                        await self._keep_while_used(connection)
                except HoldfastError as problem:
                    self._answer(b"W", str(problem).encode())
                except Exception as problem:  # whatever it is, keeping goes on
                    self._answer(b"W", f"{type(problem).__name__}: {problem}".encode())
            await self._wait()

    async def _wait(self) -> None:
        """Without messages, until there are some."""
        if not self._held:
            self._bell.clear()
            await self._bell.wait()
        await asyncio.sleep(TICK)

    async def _keep_while_used(self, connection: Connection) -> None:
        used_at = time.monotonic()
        while time.monotonic() < used_at + IDLE_SECONDS:
            for (queue, vt_s), messages in self._due().items():
                used_at = time.monotonic()
                ends_at = min(self._renewed_at[m.number] for m in messages) + vt_s
                renewing = self._renew(connection, queue, timedelta(seconds=vt_s), messages)
                async with asyncio.timeout(max(0.5, ends_at - used_at)):
                    await renewing
            await asyncio.sleep(TICK)

    def _due(self) -> dict[tuple[str, float], list[HeldMessage]]:
        """All messages of each queue that has one to renew."""
        now = time.monotonic()
        if now < self._next_due or not self._awake():
            return {}
        groups: dict[tuple[str, float], list[HeldMessage]] = {}
        due_at: dict[tuple[str, float], float] = {}
        for message in self._held.values():
            group = (message.queue, message.vt_s)
            groups.setdefault(group, []).append(message)
            at = self._renewed_at[message.number] + message.vt_s * SHARE
            due_at[group] = min(due_at.get(group, at), at)
        self._next_due = min(due_at.values(), default=float("inf"))
        return {group: messages for group, messages in groups.items() if now >= due_at[group]}

    async def _renew(
        self, connection: Connection, queue: str, vt: timedelta, messages: list[HeldMessage]
    ) -> None:
        """All in one statement. If a user's transaction has one of them locked, each by itself."""
        if not await self._extend(connection, queue, vt, messages, ALL_TOGETHER):
            for message in messages:
                await self._extend(connection, queue, vt, [message], ONE_ALONE)

    async def _extend(
        self,
        connection: Connection,
        queue: str,
        vt: timedelta,
        messages: list[HeldMessage],
        patience: timedelta,
    ) -> bool:
        sent_at = time.monotonic()
        asked = [message for message in messages if message.number in self._held]
        self._asking = {message.number for message in asked}
        receipts = [message.receipt for message in asked]
        ours: set[int] | None = None
        try:
            ours = (
                await consuming.extend(connection, queue, receipts, vt, patience=patience) if asked else set()
            )
        except NotFoundError:  # the queue was dropped, and all messages with it
            ours = set()
        finally:
            self._asking = set()
            leaving, self._leaving = self._leaving, []
            if leaving:
                self._tell(Sight(sent_at=sent_at, let_go=leaving))
        if ours is None:
            return False
        self._take_in(asked, ours, sent_at)
        return True

    def _take_in(self, asked: list[HeldMessage], ours: set[int], sent_at: float) -> None:
        there = [message for message in asked if message.number in self._held]
        kept = [message.number for message in there if message.id in ours]
        lost = [message.number for message in there if message.id not in ours]
        self._renewed_at.update(dict.fromkeys(kept, sent_at))
        for number in lost:
            del self._held[number], self._renewed_at[number]
        if there:
            self._tell(Sight(sent_at=sent_at, kept=kept, lost=lost))

    def _tell(self, news: Sight) -> None:
        self._answer(b"V", msgspec.msgpack.encode(news))


async def give_back(connection: Connection, messages: list[HeldMessage], *, released: bool) -> None:
    """After the worker's end: visible at once, or as after a failure, for one of them may have killed it."""
    for queue in {message.queue for message in messages}:
        receipts = [message.receipt for message in messages if message.queue == queue]
        with contextlib.suppress(NotFoundError):  # the queue was dropped
            if released:
                await consuming.rest(connection, queue, receipts, timedelta(0))
            else:
                await consuming.retry(connection, queue, receipts, WORKER_LOST)
