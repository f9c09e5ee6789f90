"""Connections of the HTTP library, opened by our own code: resolve, check, connect to the checked address.

`httpcore` asks its network backend for every connection, so no request can avoid the check. TLS still
verifies the certificate against the host name of the URL, not against the address.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, cast

import httpcore

from holdfast.egress.errors import (
    EgressConnectError,
    EgressError,
    EgressRefusedError,
    EgressResponseError,
    EgressTimeoutError,
    EgressTlsError,
)
from holdfast.egress.policy import EgressPolicy

MAX_CONNECT_ATTEMPTS: Final = 3
MAX_POOL_CONNECTIONS: Final = 100
KEEPALIVE_S: Final = 5.0
READ_BYTES: Final = 256 * 1024


class WideReadStream(httpcore.AsyncNetworkStream):
    """A connection that reads more at once than the library asks for.

    The library asks for 64 KiB. Each piece costs a fixed time, so large files arrive in half of the time.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Read what has arrived, at most 256 KiB."""
        return await self._stream.read(max(max_bytes, READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Write all bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface of the library)
    ) -> httpcore.AsyncNetworkStream:
        """Encrypt the connection from here on."""
        return WideReadStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return a fact about the connection, such as its socket."""
        return self._stream.get_extra_info(info)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Network backend that connects to addresses that the policy allows, and to nothing else."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self._sockets = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface of the library)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve and check the host, then connect to one of its addresses."""
        addresses = await self._policy.resolve(host, port)
        *others, last = addresses[:MAX_CONNECT_ATTEMPTS]
        for address in others:
            try:
                return WideReadStream(await self._sockets.connect_tcp(str(address), port, timeout=timeout))
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return WideReadStream(await self._sockets.connect_tcp(str(last), port, timeout=timeout))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface of the library)
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refuse the connection. Unix sockets belong to the machine."""
        raise EgressRefusedError("Unix sockets are not allowed.")

    async def sleep(self, seconds: float) -> None:
        """Wait between attempts of the library."""
        await asyncio.sleep(seconds)


def create_connection_pool(
    policy: EgressPolicy, ssl_context: ssl.SSLContext | None
) -> httpcore.AsyncConnectionPool:
    """Return a connection pool whose connections the policy checks."""
    return httpcore.AsyncConnectionPool(
        ssl_context=ssl_context or create_ssl_context(),
        max_connections=MAX_POOL_CONNECTIONS,
        keepalive_expiry=KEEPALIVE_S,
        http1=True,
        http2=False,
        network_backend=GuardedBackend(policy),
    )


@cache
def create_ssl_context() -> ssl.SSLContext:
    """Return the TLS settings of all clients: the certificates of the system, loaded once."""
    return ssl.create_default_context()


def build_timeouts(policy: EgressPolicy) -> dict[str, float]:
    """Return the time limits of one request in the form that the library expects."""
    idle_s = policy.idle_timeout.total_seconds()
    return {
        "connect": policy.connect_timeout.total_seconds(),
        "read": idle_s,
        "write": idle_s,
        "pool": policy.total_timeout.total_seconds(),
    }


@contextmanager
def translate_errors() -> Generator[None]:
    """Raise the errors of the library, of sockets and of time limits as `EgressError`."""
    try:
        yield
    except EgressError:
        raise
    except (httpcore.TimeoutException, TimeoutError):
        raise EgressTimeoutError("The server did not respond in time.") from None
    except httpcore.ProtocolError as error:
        raise EgressResponseError("The server did not send a valid HTTP response.") from error
    except (httpcore.NetworkError, httpcore.UnsupportedProtocol, OSError) as error:
        if _is_tls_error(error):
            raise EgressTlsError("The TLS certificate of the server is not valid.") from error
        raise EgressConnectError("The connection to the server failed.") from error


def _is_tls_error(error: BaseException | None) -> bool:
    """Return whether a TLS error is in the chain of causes. The library hides it behind its own error."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
