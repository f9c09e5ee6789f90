"""Whether this process can connect to a database: one event when it cannot, one when it can again.

All pools and connections of a process share one record per database, so an outage is reported once and not
once per part of a worker. While it lasts, a reminder follows at most once a minute. Only a failed attempt to
connect counts: a connection that breaks is replaced, and if that works, nobody needs to know.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from holdfast import telemetry
from holdfast.settings import Secret

REMINDER_INTERVAL_S: Final = 60.0


class DatabaseAvailability:
    """The availability of one database, as this process has observed it. Safe to use from any thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_unreachable = False
        self._lock = threading.Lock()
        self._unreachable_at = 0.0
        self._reported_at = 0.0

    def record_failure(self, error: BaseException) -> None:
        """Record that connecting failed. Emit an event if the outage begins or has lasted a minute more."""
        now = time.monotonic()
        with self._lock:
            begins = not self.is_unreachable
            if begins:
                self.is_unreachable, self._unreachable_at = True, now
            elif now - self._reported_at < REMINDER_INTERVAL_S:
                return
            self._reported_at = now
        reason = describe_connect_error(error)
        if begins:
            telemetry.emit("database.connection_failed", address=self.address, reason=reason)
        else:
            seconds = round(now - self._unreachable_at)
            telemetry.emit("database.still_unreachable", address=self.address, reason=reason, seconds=seconds)

    def record_success(self) -> None:
        """Record that the database answered. Emit an event if it was unreachable before."""
        with self._lock:
            if not self.is_unreachable:
                return
            self.is_unreachable = False
            seconds = round(time.monotonic() - self._unreachable_at, 1)
        telemetry.emit("database.connection_restored", address=self.address, seconds=seconds)


_availability_by_url: dict[str, DatabaseAvailability] = {}


def get_availability(url: Secret) -> DatabaseAvailability:
    """Return the record of a database, which everything in this process shares."""
    text = url.reveal()
    availability = _availability_by_url.get(text)
    if availability is None:
        availability = _availability_by_url.setdefault(text, DatabaseAvailability(_format_address(text)))
    return availability


def _format_address(url: str) -> str:
    """Return host, port and database of a URL: no user, no password and no options."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "local socket", parts.port
    except ValueError:
        return "invalid URL"
    return f"{host}:{port}{parts.path}" if port else f"{host}{parts.path}"


def describe_connect_error(error: BaseException) -> str:
    """Return in a few words why connecting failed, without internals of the driver."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0] if error.args else error).partition("\n")[0]
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, socket.gaierror):
        return "unknown host name"
    if isinstance(error, OSError):
        # The event loop joins the errors of several addresses of one host into one text.
        number = error.errno or next((int(n) for n in re.findall(r"\[Errno (\d+)\]", str(error))), None)
        return os.strerror(number).lower() if number else "connection failed"
    return "the connection was closed"
