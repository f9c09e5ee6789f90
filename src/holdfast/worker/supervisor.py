"""Supervise several worker processes: start them together, replace those that die, stop them together.

Each process is a complete worker. A process that dies is restarted, with a pause that shrinks the longer it
has lived. A process that exits with success was told to stop or has drained, and is not restarted. When a
first start fails because of its configuration (an app that cannot be imported, an outdated schema), all
processes stop, because another try would fail in the same way. The first TERM or INT is passed on, and so is
the second, which means: release now. Each process has a pipe to the supervisor as standard input and stops
when it closes, so no process outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast import telemetry

MIN_RESTART_PAUSE_S, MAX_RESTART_PAUSE_S = 0.2, 30.0
STABLE_PROCESS_AFTER_S = 60.0  # a process that lived this long resets the restart pause
PERMANENT_EXIT_CODES = frozenset({2, 3, 4, 5})  # another try would fail in the same way


@dataclass
class ProcessSlot:
    """One worker process of a supervisor, which replaces the process when it dies."""

    number: int
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    deaths: int = 0

    @property
    def restart_pause_s(self) -> float:
        ceiling = min(MAX_RESTART_PAUSE_S, MIN_RESTART_PAUSE_S * 2.0 ** min(self.deaths, 30))
        return random.uniform(MIN_RESTART_PAUSE_S, ceiling)  # noqa: S311  (spreads load)


class Supervisor:
    """Runs `count` worker processes and replaces processes that die.

    `command` returns the command line of a slot number.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], count: int) -> None:
        self._command = command
        self._slots = [ProcessSlot(number) for number in range(1, count + 1)]
        self._signals = 0
        self._stopping = asyncio.Event()
        self._permanent_exit_code: int | None = None

    async def run(self) -> int:
        """Run all processes and return the common exit code."""
        codes = await asyncio.gather(*(self._run_slot(slot) for slot in self._slots))
        return (
            self._permanent_exit_code
            if self._permanent_exit_code is not None
            else max(map(abs, codes), default=0)
        )

    def stop(self) -> None:
        """Send a stop signal to all processes.

        Call this method again to send the second signal.
        """
        self._signals += 1
        self._stopping.set()
        for slot in self._slots:
            self._send_stop_signal(slot)

    def _send_stop_signal(self, slot: ProcessSlot) -> None:
        if slot.process is not None and slot.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                slot.process.send_signal(signal.SIGTERM)

    async def _run_slot(self, slot: ProcessSlot) -> int:
        """Run a worker process and restart it until it exits with success or all must stop."""
        while True:
            started_at = time.monotonic()
            code = await self._run_process(slot)
            if code == 0 or self._stopping.is_set():
                return 0 if self._signals and code == -signal.SIGTERM else code
            if code in PERMANENT_EXIT_CODES and slot.starts == 1:
                self._permanent_exit_code = (
                    code if self._permanent_exit_code is None else self._permanent_exit_code
                )
                self.stop()
                return code
            slot.deaths = 1 if time.monotonic() - started_at > STABLE_PROCESS_AFTER_S else slot.deaths + 1
            await self._pause_before_restart(slot, code)
            if self._stopping.is_set():
                return 0

    async def _run_process(self, slot: ProcessSlot) -> int:
        slot.starts += 1
        slot.process = await asyncio.create_subprocess_exec(
            *self._command(slot.number),
            stdin=asyncio.subprocess.PIPE,
            # Ctrl-C in the terminal must reach the supervisor only, which passes it on once.
            start_new_session=True,
        )
        for _ in range(self._signals):  # signals that arrived while the process started
            self._send_stop_signal(slot)
        return await slot.process.wait()

    async def _pause_before_restart(self, slot: ProcessSlot, code: int) -> None:
        pause = slot.restart_pause_s
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        telemetry.emit("worker.process_restarted", number=slot.number, reason=reason, retry_in=pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopping.wait()
