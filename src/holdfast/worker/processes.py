"""Several worker processes under one: started together, replaced when they die, stopped together.

Each is a whole worker and knows nothing of the others. One that dies is started again, sooner the longer it
has lived; one that ends by itself with success was told to, or has drained, and is not. A first start that
fails because of what was asked for (an app that cannot be imported, a schema that does not fit) ends all:
another try would say the same. The first TERM or INT is passed on, and so is the second, which means:
release now. They hold the other end of a pipe as their standard input and stop when it closes, so none
outlives its parent.
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

LEAST_PAUSE, MOST_PAUSE = 0.2, 30.0
STEADY_SECONDS = 60.0  # a life as long as this forgives the deaths before it
HOPELESS = frozenset({2, 3, 4, 5})  # exit codes that another try would repeat


@dataclass
class Seat:
    """The place of one process, whoever sits in it now."""

    number: int
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    deaths: int = 0

    @property
    def pause(self) -> float:
        ceiling = min(MOST_PAUSE, LEAST_PAUSE * 2**self.deaths)
        return random.uniform(LEAST_PAUSE, ceiling)  # noqa: S311  (spreads load, hides nothing)


class Supervisor:
    def __init__(self, command: Callable[[int], Sequence[str]], count: int) -> None:
        self._command = command
        self._seats = [Seat(number) for number in range(1, count + 1)]
        self._signals = 0
        self._stopping = asyncio.Event()
        self._hopeless: int | None = None

    async def run(self) -> int:
        """The exit code for all of them."""
        codes = await asyncio.gather(*(self._keep(seat) for seat in self._seats))
        return self._hopeless if self._hopeless is not None else max(map(abs, codes), default=0)

    def stop(self) -> None:
        """Asked to, by a signal; again for the second one."""
        self._signals += 1
        self._stopping.set()
        for seat in self._seats:
            self._tell(seat)

    def _tell(self, seat: Seat) -> None:
        if seat.process is not None and seat.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                seat.process.send_signal(signal.SIGTERM)

    async def _keep(self, seat: Seat) -> int:
        """One process after the other, until one ends well or all are to end."""
        while True:
            began = time.monotonic()
            code = await self._live(seat)
            if code == 0 or self._stopping.is_set():
                return 0 if self._signals and code == -signal.SIGTERM else code
            if code in HOPELESS and seat.starts == 1:
                self._hopeless = code if self._hopeless is None else self._hopeless
                self.stop()
                return code
            seat.deaths = 1 if time.monotonic() - began > STEADY_SECONDS else seat.deaths + 1
            await self._rest(seat, code)
            if self._stopping.is_set():
                return 0

    async def _live(self, seat: Seat) -> int:
        seat.starts += 1
        seat.process = await asyncio.create_subprocess_exec(
            *self._command(seat.number),
            stdin=asyncio.subprocess.PIPE,
            # A Ctrl-C in the terminal reaches only us, and is passed on once.
            start_new_session=True,
        )
        for _ in range(self._signals):  # they came while it was being started
            self._tell(seat)
        return await seat.process.wait()

    async def _rest(self, seat: Seat, code: int) -> None:
        pause = seat.pause
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        telemetry.emit("worker.process_restarted", number=seat.number, reason=reason, retry_in=pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopping.wait()
