"""Messages in the hands of this worker, shared by a consumer's loop and what keeps them invisible."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from holdfast.definitions.consumers import Consumer
from holdfast.engine import borrowed
from holdfast.engine.messages import queues
from holdfast.errors import LeaseLostError
from holdfast.model import Message
from holdfast.worker.running import MARGIN


@dataclass(frozen=True)
class Ending:
    """What is to become of a message; the database may say that it is no longer ours."""

    kind: Literal["archive", "delete", "fail", "bury", "rest"]
    error: str = ""
    delay: timedelta = timedelta(0)


class Keeper(Protocol):
    """Whoever keeps messages invisible while their functions run."""

    def hold(self, deliveries: Sequence[Delivery]) -> None: ...
    def drop(self, deliveries: Sequence[Delivery]) -> None: ...
    async def let_go(self, delivery: Delivery) -> None: ...


class Nobody:
    """Where functions are over long before their vt."""

    def hold(self, deliveries: Sequence[Delivery]) -> None: ...
    def drop(self, deliveries: Sequence[Delivery]) -> None: ...
    async def let_go(self, delivery: Delivery) -> None: ...


_numbers = itertools.count(1)


@dataclass(eq=False)
class Delivery:
    """One message given to a consumer. It is what `msg.done` and `msg.check` ask."""

    consumer: Consumer[Any]
    message: Message[Any]
    receipt: str
    max_reads: int | None
    renewed_at: float
    keeper: Keeper
    number: int = field(default_factory=_numbers.__next__)  # what worker and heartbeat call it
    runner: asyncio.Task[None] | None = None
    stopped: str | None = None
    finishing: bool = False  # in the user's transaction, which holds the row: nobody else may wait for it
    ended: bool = False

    @property
    def must_stop_at(self) -> float:
        return self.renewed_at + self.consumer.vt.total_seconds() * (1 - MARGIN)

    @property
    def kept(self) -> bool:
        """Whether somebody has to keep it invisible."""
        return not (self.finishing or self.ended or self.stopped is not None)

    def stop(self, reason: str) -> bool:
        """Mark as no longer wanted; plain functions find out at their next `check`. False: too late."""
        if self.stopped is not None or self.ended:
            return False
        self.stopped = reason
        return True

    def done(self, on: object) -> Awaitable[None]:
        if self.stopped is not None:
            raise LeaseLostError(
                f"Message {self.message.id} of queue {self.message.queue} is no longer ours: {self.stopped}."
            )
        question = queues.finishing(self.message.queue, self.receipt, self.consumer.finish)
        self._finish(True)
        try:
            answer = borrowed.ask_now(on, question)
        except BaseException:
            self._finish(False)
            raise
        return answer if isinstance(answer, borrowed.Answered) else self._awaited(answer)

    async def _awaited(self, answer: Awaitable[None]) -> None:
        try:
            await answer
        except BaseException:
            self._finish(False)
            raise

    def _finish(self, finishing: bool) -> None:
        self.finishing = finishing
        if finishing:
            self.keeper.drop([self])
        elif self.kept:
            self.keeper.hold([self])
