"""Tell systemd that the process is ready, alive or stopping (sd_notify), when systemd asks for it.

A unit with `Type=notify` gets a datagram socket in NOTIFY_SOCKET, and with `WatchdogSec=` an interval in
WATCHDOG_USEC. The event loop sends the messages: a blocked loop sends none, and systemd restarts the service.
Without NOTIFY_SOCKET everything here does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager
from typing import Final

# Every message moves the end of TimeoutStartSec=, so that waiting for the database is no failed start.
START_EXTENSION_S: Final = 60
START_MESSAGE_INTERVAL_S: Final = 20.0
WATCHDOG_MESSAGES_PER_INTERVAL: Final = 3
_log = logging.getLogger("holdfast.systemd")


class SystemdNotifier:
    """Sends the state of this process to systemd. `address` is NOTIFY_SOCKET; None sends nothing."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._is_ready = False
        self._stopped = False
        self._message_interval_s = watchdog_s and watchdog_s / WATCHDOG_MESSAGES_PER_INTERVAL
        self._has_logged_error = False
        self._wake = asyncio.Event()

    def mark_ready(self, status: str) -> None:
        """Report that the process has started. Its watchdog runs from now on."""
        self._is_ready = True
        self._wake.set()
        self._send("READY=1", f"STATUS={status}")

    def mark_stopping(self, status: str) -> None:
        """Report that the process has begun to stop. Later calls send nothing."""
        if not self._stopped:
            self._stopped = True
            self._send("STOPPING=1", f"STATUS={status}")

    async def send_signs_of_life(self) -> None:
        """Ask for more time until the process is ready, then keep its watchdog quiet."""
        if self._address is None:
            return
        while not self._is_ready:
            self._send(f"EXTEND_TIMEOUT_USEC={START_EXTENSION_S * 1_000_000}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(START_MESSAGE_INTERVAL_S):
                    await self._wake.wait()
        while self._message_interval_s:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._message_interval_s)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        path = self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
                connection.setblocking(False)
                connection.connect("\0" + path[1:] if path.startswith("@") else path)
                connection.send("\n".join(line.replace("\n", " ") for line in lines).encode())
        except OSError as error:  # systemd decides about silence; the work goes on
            if not self._has_logged_error:
                _log.warning("Cannot send to systemd at NOTIFY_SOCKET=%s: %s", path, error)
            self._has_logged_error = True


def create_notifier(environment: MutableMapping[str, str]) -> SystemdNotifier:
    """Create a notifier from the variables of systemd, and remove them.

    Programs that this process starts must not speak for it, so they do not see the variables.
    """
    address = environment.pop("NOTIFY_SOCKET", None)
    interval, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    is_for_this_process = pid in {"", str(os.getpid())}
    watchdog_s = int(interval) / 1_000_000 if interval.isdecimal() and is_for_this_process else None
    return SystemdNotifier(address or None, watchdog_s)


@asynccontextmanager
async def notify_systemd() -> AsyncGenerator[SystemdNotifier]:
    """Send signs of life to systemd while the block runs."""
    notifier = create_notifier(os.environ)  # house: environment (of systemd; not a setting)
    sender = asyncio.create_task(notifier.send_signs_of_life())
    try:
        yield notifier
    finally:
        notifier.mark_stopping("Stopped.")
        sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sender
