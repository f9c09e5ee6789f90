"""The socket on which systemd receives messages of a service with `Type=notify`."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType


class NotifySocket:
    """Receives the messages of a service, as systemd does. `environment` is what systemd sets for it."""

    def __init__(self, folder: Path, watchdog_s: float | None = None) -> None:
        self.path = folder / "notify"
        self.environment = {"NOTIFY_SOCKET": str(self.path)}
        if watchdog_s is not None:
            self.environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1_000_000))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.messages: list[str] = []

    def __enter__(self) -> NotifySocket:
        self._socket.bind(str(self.path))
        self._socket.setblocking(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def has_received(self, line: str) -> bool:
        """Read what has arrived, and return whether a message has this line."""
        while True:
            try:
                self.messages.append(self._socket.recv(65536).decode())
            except BlockingIOError:
                return any(line in message.splitlines() for message in self.messages)
