"""Connect to the primary of several database hosts, as after a failover.

An address may name several hosts: `postgresql://user@one:5432,two:5432/app`. A host that is frozen or cut off
accepts no connection and refuses none, so hosts that are tried one after the other would cost the whole time
limit each. All hosts are tried side by side, the last primary with a head start, and the first one that is
the primary wins.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qs, unquote, urlsplit
from weakref import WeakKeyDictionary

import asyncpg

Host: TypeAlias = tuple[str, int]

HEAD_START_S: Final = 0.5  # of the host that was the primary before
DEFAULT_PORT: Final = 5432
_last_primaries: dict[tuple[Host, ...], Host] = {}
# The event loop, the address and the host of each open connection to an address with several hosts.
_connections: WeakKeyDictionary[asyncpg.Connection[Any], tuple[asyncio.AbstractEventLoop, str, Host]]
_connections = WeakKeyDictionary()


def parse_hosts(url: str) -> list[Host]:
    """Return the hosts of a database address with their ports. The list is empty if there is only one.

    >>> parse_hosts("postgresql://ann@one,two:5433/app")
    [('one', 5432), ('two', 5433)]
    >>> parse_hosts("postgresql://ann@one/app")
    []
    """
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    hosts = ",".join(query.get("host", [])) or parts.netloc.rpartition("@")[2]
    ports = ",".join(query.get("port", [])).split(",")
    entries = [entry for entry in hosts.split(",") if entry]
    if len(entries) < 2:
        return []
    return [_parse_host(entry, ports[min(number, len(ports) - 1)]) for number, entry in enumerate(entries)]


def _parse_host(entry: str, port: str) -> Host:
    host, separator, own_port = entry.rpartition(":")
    if not separator or own_port.endswith("]") or not own_port.isdigit():
        host, own_port = entry, port
    return unquote(host).strip("[]"), int(own_port or DEFAULT_PORT)


async def connect_to_primary(url: str, **options: Any) -> asyncpg.Connection[Any]:
    """Open a connection: to the only host, or to the primary of several."""
    hosts = parse_hosts(url)
    if not hosts:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url, **options)
        return connection
    timeout_s = cast("float", options.pop("timeout", 60))
    async with asyncio.timeout(timeout_s):
        return await _connect_to_first(url, hosts, options)


async def connect_to_host(url: str, host: Host, **options: Any) -> asyncpg.Connection[Any]:
    """Open a connection to one host of several, if it is the primary or what the address asks for."""
    if "target_session_attrs" not in parse_qs(urlsplit(url).query):
        options["target_session_attrs"] = "primary"
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url, host=host[0], port=host[1], **options)
    _connections[connection] = (asyncio.get_running_loop(), url, host)
    return connection


def get_host(connection: Any) -> Host | None:
    """Return the host of a connection to an address with several hosts, or None for other connections."""
    entry = _connections.get(getattr(connection, "_con", connection))  # a pool wraps its connections
    return entry[2] if entry else None


def terminate_connections(url: str, host: Host) -> None:
    """End all connections of this event loop to a host at once. Calls on them raise an error."""
    current = (asyncio.get_running_loop(), url, host)
    for connection in [connection for connection, entry in _connections.items() if entry == current]:
        connection.terminate()


async def _connect_to_first(url: str, hosts: list[Host], options: dict[str, Any]) -> asyncpg.Connection[Any]:
    key = tuple(hosts)
    delay_s = HEAD_START_S if key in _last_primaries else 0
    attempts = {
        asyncio.create_task(
            _connect_after(url, host, options, 0 if host == _last_primaries.get(key) else delay_s)
        ): host
        for host in hosts
    }
    failures: list[BaseException] = []
    waiting = set(attempts)
    try:
        while waiting:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for attempt in ended:
                error = attempt.exception()
                if error is None:
                    _last_primaries[key] = attempts.pop(attempt)
                    return attempt.result()
                failures.append(error)
    finally:
        await _abandon(attempts)
    raise _choose_error(failures)


async def _connect_after(
    url: str, host: Host, options: dict[str, Any], delay_s: float
) -> asyncpg.Connection[Any]:
    await asyncio.sleep(delay_s)
    return await connect_to_host(url, host, **options)


async def _abandon(attempts: Any) -> None:
    """Cancel the other attempts, and close what they have opened meanwhile."""
    for attempt in attempts:
        attempt.cancel()
    for attempt in attempts:
        with contextlib.suppress(BaseException):
            (await attempt).terminate()


def _choose_error(failures: list[BaseException]) -> BaseException:
    """Return the error to show: a wrong password or database before "this is a standby"."""
    for error in failures:
        if not isinstance(error, (OSError, asyncpg.TargetServerAttributeNotMatched)):
            return error
    return failures[-1]
