"""A local proxy with the egress policy, for programs that open their own connections.

The proxy listens on 127.0.0.1 and needs a password that is made for it. Names are resolved in the proxy and
nowhere else. It ends with the block that opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from holdfast.egress.policy import EgressPolicy
from holdfast.egress.proxy_state import PROXY_USERNAME, ProxyLimits, ProxyRefusal, ProxyState

if TYPE_CHECKING:
    import httpcore

    from holdfast.egress.proxy_connection import ProxyConnection

PROXY_HOST: Final = "127.0.0.1"


class GuardedProxy:
    """HTTP proxy on loopback for programs such as Chromium, curl, ffmpeg and yt-dlp.

    >>> import asyncio
    >>> from holdfast.egress import EgressPolicy, GuardedProxy
    >>> async def main() -> None:
    ...     async with GuardedProxy(EgressPolicy()) as proxy:
    ...         command = ["/usr/bin/curl", "https://example.com/hook"]
    ...         process = await asyncio.create_subprocess_exec(*command, env=proxy.environment)
    ...         await process.wait()
    ...         print(proxy.bytes_received, [refusal.reason for refusal in proxy.refusals])

    The proxy checks every request with the policy, like `EgressClient`: http directly, https and WebSockets
    as a tunnel (CONNECT). The content types and the size limits of the policy do not apply, because the
    content of a tunnel is encrypted; `limits` bounds the bytes, the connections and the time.

    Arguments:
        policy: what may be reached (default: `EgressPolicy.from_settings()`)
        limits: bytes, connections and times (default: `ProxyLimits()`)
    """

    def __init__(self, policy: EgressPolicy | None = None, limits: ProxyLimits | None = None) -> None:
        self._state = ProxyState(policy or EgressPolicy.from_settings(), limits or ProxyLimits())
        self._server: asyncio.Server | None = None
        self._pool: httpcore.AsyncConnectionPool | None = None
        self._connection_class: type[ProxyConnection] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._lifetime_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """Return the port that the proxy listens on."""
        if self._server is None:
            raise RuntimeError("The proxy is not open; use `async with`.")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Return the URL of the proxy with its user name and password, as curl and ffmpeg take it."""
        return f"http://{self.username}:{self.password}@{PROXY_HOST}:{self.port}"

    @property
    def server_url(self) -> str:
        """Return the URL of the proxy without its password, for programs that take it separately."""
        return f"http://{PROXY_HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which curl, ffmpeg, yt-dlp and most programs use the proxy.

        Other users of the machine can read the arguments of a process, but not its environment.
        """
        names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        return {**dict.fromkeys(names, self.url), "no_proxy": "", "NO_PROXY": ""}

    @property
    def username(self) -> str:
        """Return the user name that the proxy expects."""
        return PROXY_USERNAME

    @property
    def password(self) -> str:
        """Return the password of this proxy, which is random and used nowhere else."""
        return self._state.password

    @property
    def refusals(self) -> Sequence[ProxyRefusal]:
        """Return the refused requests, oldest first. The proxy keeps the last 1000."""
        return tuple(self._state.refusals)

    @property
    def bytes_sent(self) -> int:
        """Return how many bytes the program has sent to servers."""
        return self._state.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Return how many bytes the program has received from servers."""
        return self._state.bytes_received

    async def __aenter__(self) -> Self:
        # Slow to import, so only when a proxy is opened, and before it listens: an import that failed later
        # would leave the program waiting on an accepted connection.
        from holdfast.egress.connections import create_connection_pool  # noqa: PLC0415
        from holdfast.egress.proxy_connection import ProxyConnection  # noqa: PLC0415

        self._connection_class = ProxyConnection
        self._pool = create_connection_pool(self._state.policy, None)
        self._server = await asyncio.start_server(self._accept, PROXY_HOST, 0)
        self._lifetime_timer = asyncio.get_running_loop().call_later(
            self._state.limits.lifetime.total_seconds(), self._expire
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._lifetime_timer is not None:
            self._lifetime_timer.cancel()
        if self._server is not None:
            self._server.close()
        self._cancel_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._pool is not None:
            await self._pool.aclose()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own, because asyncio logs an error when it cancels a task that it made itself.
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._pool is None or self._connection_class is None:
            return
        self._state.open_connections += 1
        try:
            await self._connection_class(self._state, self._pool, (reader, writer)).run()
        finally:
            self._state.open_connections -= 1
            with contextlib.suppress(OSError):
                writer.close()

    def _expire(self) -> None:
        self._state.has_expired = True
        self._cancel_connections()

    def _cancel_connections(self) -> None:
        for task in self._connections:
            task.cancel()
