"""Leave a primary that was replaced while a call waits for its answer.

A frozen server answers nothing and closes nothing, so a call to it would wait for the whole `call_timeout`
although another server has taken over. Of an address with several hosts, a call that takes longer than
`SUSPECT_AFTER_S` makes this process ask all hosts. When another host is the primary and this one does not
answer as a primary, all connections to it are ended, and their calls raise DatabaseUnavailableError.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import asyncpg

from holdfast.engine import hosts
from holdfast.engine.hosts import Host

SUSPECT_AFTER_S: Final = 5.0
CHECK_INTERVAL_S: Final = 0.5
ANSWER_TIMEOUT_S: Final = 2.0


class PrimaryWatch:
    """Watches the calls of one pool to an address with several hosts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._checks: set[asyncio.Task[None]] = set()

    def watch_call(self, connection: Any) -> asyncio.TimerHandle:
        """Return a timer that starts the check. Cancel it when the call has ended."""
        return asyncio.get_running_loop().call_later(SUSPECT_AFTER_S, self._start_check, connection)

    def close(self) -> None:
        for check in self._checks:
            check.cancel()

    def _start_check(self, connection: Any) -> None:
        host = hosts.get_host(connection)
        if self._checks or host is None:  # one check ends all connections to a host
            return
        check = asyncio.create_task(self._end_calls_if_replaced(connection, host))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _end_calls_if_replaced(self, connection: Any, host: Host) -> None:
        while not connection.is_closed():
            if await is_replaced(self._url, host):
                hosts.terminate_connections(self._url, host)
                return
            await asyncio.sleep(CHECK_INTERVAL_S)


async def is_replaced(url: str, host: Host) -> bool:
    """Return whether another host is the primary now and this one does not answer as a primary."""
    primary, same = await asyncio.gather(
        _find_answering_host(hosts.connect_to_primary(url, timeout=ANSWER_TIMEOUT_S)),
        _find_answering_host(hosts.connect_to_host(url, host, timeout=ANSWER_TIMEOUT_S)),
    )
    return primary not in {None, host} and same is None


async def _find_answering_host(connecting: Any) -> Host | None:
    """Return the host that a connection leads to, or None if it cannot be opened."""
    try:
        async with asyncio.timeout(2 * ANSWER_TIMEOUT_S):
            connection = await connecting
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
        return None
    host = hosts.get_host(connection)
    connection.terminate()
    with contextlib.suppress(Exception):
        await connection.close(timeout=ANSWER_TIMEOUT_S)
    return host
