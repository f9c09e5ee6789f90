"""What a running task is given: who it is, how long it may take, and a way to say how far it is.

Nothing here touches the database. Progress is kept until the heartbeat collects it, so a task may report
as often as it likes; only the newest report travels.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.model import Progress

MESSAGE_CHARACTERS = 500


@dataclass(eq=False)
class Context:
    task_id: str
    job_id: str
    attempt: int
    deadline: datetime
    state: Any = None
    _progress: Progress = field(default_factory=Progress)
    _reported: Progress = field(default_factory=Progress)
    _stop_reason: str | None = None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this task: hand it to services that support one."""
        return self.task_id

    @property
    def cancelled(self) -> bool:
        return self._stop_reason is not None

    def check(self) -> None:
        """Raise CancelledError when this attempt should stop; plain functions cannot be interrupted."""
        if self._stop_reason is not None:
            raise asyncio.CancelledError(self._stop_reason)

    def progress(
        self,
        done: float | None = None,
        total: float = 100,
        *,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """`done` of `total`; the bar never runs backwards within one attempt."""
        before = self._progress
        percent = before.percent
        if done is not None and total > 0:
            percent = max(percent or 0.0, min(100.0, max(0.0, 100.0 * done / total)))
        self._progress = Progress(
            percent=percent,
            phase=_clean(phase) if phase is not None else before.phase,
            message=_clean(message) if message is not None else before.message,
        )

    def stop(self, reason: str) -> None:
        """Called by the worker: the lease is lost, the job was cancelled, or the time is over."""
        self._stop_reason = reason

    def unreported(self) -> Progress | None:
        """The newest progress, if it has not been collected yet."""
        return self._progress if self._progress != self._reported else None

    def reported(self, progress: Progress) -> None:
        """What the database has accepted."""
        self._reported = progress


def _clean(text: str) -> str:
    """Progress must never be the reason a task fails: cut it, and drop what PostgreSQL cannot keep."""
    return text[:MESSAGE_CHARACTERS].replace("\0", "").encode("utf-8", "replace").decode()
