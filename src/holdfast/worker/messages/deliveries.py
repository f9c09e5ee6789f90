"""Messages that this worker processes, shared by the consumer loop and the visibility renewal."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from holdfast.definitions.consumers import Consumer
from holdfast.engine import caller_connection
from holdfast.engine.messages import queues
from holdfast.errors import LeaseLostError
from holdfast.model import Message
from holdfast.worker.attempts import LEASE_SAFETY_SHARE


@dataclass(frozen=True)
class MessageOutcome:
    """The action for a processed message: archive, delete, delay, fail or move to dead letters.

    The database refuses the action when another reader has the message.
    """

    kind: Literal["archive", "delete", "fail", "dead_letter", "delay"]
    error: str = ""
    delay: timedelta = timedelta(0)


class MessageVisibility(Protocol):
    """Keeps messages invisible while consumers process them."""

    def hold_messages(self, deliveries: Sequence[Delivery]) -> None: ...
    def drop_messages(self, deliveries: Sequence[Delivery]) -> None: ...
    async def drop_message_and_wait(self, delivery: Delivery) -> None: ...


class NoVisibilityRenewal:
    """Does not renew visibility. Tests use it for functions that return quickly."""

    def hold_messages(self, deliveries: Sequence[Delivery]) -> None: ...
    def drop_messages(self, deliveries: Sequence[Delivery]) -> None: ...
    async def drop_message_and_wait(self, delivery: Delivery) -> None: ...


_delivery_numbers = itertools.count(1)


@dataclass(eq=False)
class Delivery:
    """One message that a consumer of this worker processes.

    Implements `message.done` and `message.check`.
    """

    consumer: Consumer[Any]
    message: Message[Any]
    receipt: str
    max_reads: int | None
    renewed_at: float
    visibility: MessageVisibility
    number: int = field(
        default_factory=_delivery_numbers.__next__
    )  # identifies it between worker and heartbeat process
    runner: asyncio.Task[None] | None = None
    stop_reason: str | None = None
    finishing: bool = False  # the user's transaction holds the row, so nothing else may wait for it
    ended: bool = False

    @property
    def lease_safe_until(self) -> float:
        return self.renewed_at + self.consumer.vt.total_seconds() * (1 - LEASE_SAFETY_SHARE)

    @property
    def needs_renewal(self) -> bool:
        """Whether the heartbeat process must keep the message invisible."""
        return not (self.finishing or self.ended or self.stop_reason is not None)

    def stop(self, reason: str) -> bool:
        """Mark the delivery as stopped. Return False if the delivery was stopped or ended before.

        Plain functions notice at their next `check`. False when it has ended.
        """
        if self.stop_reason is not None or self.ended:
            return False
        self.stop_reason = reason
        return True

    def done(self, on: object) -> Awaitable[None]:
        if self.stop_reason is not None:
            raise LeaseLostError(
                f"Message {self.message.id} of queue {self.message.queue} is no longer leased by this worker:"
                f" {self.stop_reason}."
            )
        statement = queues.build_finish_statement(self.message.queue, self.receipt, self.consumer.finish)
        self._set_finishing(True)
        try:
            result = caller_connection.run_statement_or_defer(on, statement)
        except BaseException:
            self._set_finishing(False)
            raise
        if isinstance(result, caller_connection.CompletedAwaitable):
            return result
        return self._await_finish_statement(result)

    async def _await_finish_statement(self, result: Awaitable[None]) -> None:
        try:
            await result
        except BaseException:
            self._set_finishing(False)
            raise

    def _set_finishing(self, finishing: bool) -> None:
        self.finishing = finishing
        if finishing:
            self.visibility.drop_messages([self])
        elif self.needs_renewal:
            self.visibility.hold_messages([self])
