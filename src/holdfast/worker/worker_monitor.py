"""The state of the worker process, as its heartbeat process sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from holdfast.worker.process_groups import read_process_state


class WorkerMonitor:
    """Asks the operating system whether the worker runs, is stopped, or has ended.

    `on_end` is called when the worker process ends, where the system reports it. Elsewhere, ask `is_dead`.
    """

    def __init__(self, pid: int, on_end: Callable[[], None]) -> None:
        self.pid = pid
        self._on_end = on_end
        self._was_reported_dead = False
        self._descriptor: int | None = None  # readable when the process has ended
        with contextlib.suppress(OSError, AttributeError):
            self._descriptor = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(self._descriptor, self._handle_end)

    def _handle_end(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._was_reported_dead = True
        self._on_end()

    @property
    def has_ended(self) -> bool:
        """Whether the worker has ended. Costs nothing where the system reports it: called all the time."""
        return self.is_dead if self._descriptor is None else self._was_reported_dead

    @property
    def is_dead(self) -> bool:
        # The parent of an orphan changes; until then the dead process is a zombie.
        return os.getppid() != self.pid or read_process_state(self.pid) in {"Z", "X", "x"}

    @property
    def is_stopped(self) -> bool:
        return read_process_state(self.pid) in {"T", "t"}
