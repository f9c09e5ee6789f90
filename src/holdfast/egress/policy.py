"""The policy of outgoing requests: what may be reached, how much and for how long.

`EgressClient`, webhooks and `GuardedProxy` ask the same policy. A host name is resolved once, every resulting
address is checked, and the connection goes to a checked address. So a name server that returns another
address a moment later (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Final, TypeAlias

from holdfast.egress.addresses import IpAddress, is_public_address, unmap_address
from holdfast.egress.allowlist import EgressAllowlist
from holdfast.egress.errors import EgressDnsError, EgressRefusedError, EgressTimeoutError
from holdfast.egress.urls import EgressUrl, parse_address, parse_egress_url
from holdfast.errors import SettingsError
from holdfast.settings import Settings, load_settings

Resolver: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]

MAX_DNS_THREADS: Final = 8
MAX_ADDRESSES_PER_HOST: Final = 64


@dataclass(frozen=True, kw_only=True)
class EgressPolicy:
    """What outgoing requests may reach, and their limits. The default: http and https to public addresses.

    >>> from datetime import timedelta
    >>> from holdfast.egress import EgressAllowlist, EgressPolicy
    >>> policy = EgressPolicy(
    ...     allowlist=EgressAllowlist.parse("hooks.internal:8080"),
    ...     content_types=frozenset({"image/*"}),
    ...     total_timeout=timedelta(seconds=20),
    ... )
    >>> policy.check_url("https://example.com/cat.png").host
    'example.com'

    Arguments:
        schemes: the permitted schemes, of http and https
        ports: the permitted ports of public addresses
        allowlist: the permitted private networks, hosts and other ports
        content_types: the permitted types of responses, such as text/html or image/* (default: all)
        max_response_bytes: the maximum size of a response body, before and after decompression
        max_request_bytes: the maximum size of a request body
        max_decompression_ratio: how much larger than received a decompressed body may be
        max_redirects: how many redirects are followed
        connect_timeout: the maximum time for the name server and for each connection
        idle_timeout: the maximum time without a byte from or to the server
        total_timeout: the maximum duration of a request, with its redirects and its body
        max_connections_per_host: how many requests of one client to one host run at once
        max_requests_per_second: how many requests of one client to one host start in a second (default: any)
        resolver: an asynchronous function from a host name to its addresses (default: that of the system)
    """

    schemes: frozenset[str] = frozenset({"http", "https"})
    ports: frozenset[int] = frozenset({80, 443})
    allowlist: EgressAllowlist = field(default_factory=EgressAllowlist)
    content_types: frozenset[str] = frozenset()
    max_response_bytes: int = 100 * 1024 * 1024
    max_request_bytes: int = 100 * 1024 * 1024
    max_decompression_ratio: int = 200
    max_redirects: int = 10
    connect_timeout: timedelta = timedelta(seconds=10)
    idle_timeout: timedelta = timedelta(seconds=30)
    total_timeout: timedelta = timedelta(seconds=60)
    max_connections_per_host: int = 8
    max_requests_per_second: float | None = None
    resolver: Resolver | None = None

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> EgressPolicy:
        """Return the policy of the settings `egress_allow`, `egress_ports`, `egress_max_bytes` and
        `egress_timeout`. Without an argument, the settings are read from the environment.
        """
        settings = settings or load_settings()
        return cls(
            allowlist=EgressAllowlist.parse(settings.egress_allow),
            ports=_parse_ports(settings.egress_ports),
            max_response_bytes=settings.egress_max_bytes,
            total_timeout=settings.egress_timeout,
        )

    def check_url(self, url: str) -> EgressUrl:
        """Parse a URL and check what is known without its addresses. Raise EgressRefusedError if refused."""
        parsed = parse_egress_url(url)
        if parsed.scheme not in self.schemes:
            raise EgressRefusedError(f"URLs with {parsed.scheme}:// are not allowed.", field="url")
        return parsed

    async def resolve(self, host: str, port: int) -> list[IpAddress]:
        """Resolve a host once and return its addresses. Raise EgressRefusedError if one is not allowed.

        Connect to the returned addresses. Do not resolve the name again, because the answer can change.
        """
        literal = parse_address(host)
        addresses = [literal] if literal is not None else await self._look_up(host)
        for address in addresses:
            self._check_address(host, address, port)
        return addresses

    async def _look_up(self, host: str) -> list[IpAddress]:
        resolver = self.resolver or resolve_with_system
        try:
            async with asyncio.timeout(self.connect_timeout.total_seconds()):
                texts = await resolver(host)
            addresses = [unmap_address(ipaddress.ip_address(text)) for text in texts]
        except TimeoutError:
            raise EgressTimeoutError("The name server did not respond in time.", field="url") from None
        except (OSError, UnicodeError, ValueError):
            raise EgressDnsError("The host of the URL does not exist.", field="url") from None
        if not addresses:
            raise EgressDnsError("The host of the URL does not exist.", field="url")
        return list(dict.fromkeys(addresses))[:MAX_ADDRESSES_PER_HOST]

    def _check_address(self, host: str, address: IpAddress, port: int) -> None:
        if self.allowlist.permits(host, unmap_address(address), port):
            return
        if not is_public_address(address):
            raise EgressRefusedError("The host of the URL is not on the public internet.", field="url")
        if port not in self.ports:
            ports = " or ".join(str(port) for port in sorted(self.ports))
            raise EgressRefusedError(f"The port of the URL must be {ports}.", field="url")


async def resolve_with_system(host: str) -> list[str]:
    """Resolve a host name with the resolver of the operating system, in a thread of its own pool."""
    loop = asyncio.get_running_loop()
    rows = await loop.run_in_executor(_create_dns_threads(), _call_getaddrinfo, host)
    return [str(address[0]) for *_, address in rows]


def _call_getaddrinfo(host: str) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    return [tuple(row) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]  # type: ignore[misc]


@cache
def _create_dns_threads() -> ThreadPoolExecutor:
    # Names with slow name servers must not occupy the threads that the worker uses for other work.
    return ThreadPoolExecutor(MAX_DNS_THREADS, thread_name_prefix="holdfast-dns")


def _parse_ports(text: str) -> frozenset[int]:
    try:
        ports = frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        ports = frozenset({0})
    if not ports or not all(0 < port < 65536 for port in ports):
        raise SettingsError(
            f"egress_ports must be port numbers, comma-separated, got {text!r}.", field="egress_ports"
        )
    return ports
