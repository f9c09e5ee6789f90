"""Send requests to URLs that users chose, without giving them access to private networks (SSRF).

A host name is resolved once. Every resulting address is checked, IPv4 and IPv6, including IPv6 addresses
that contain an IPv4 address, and the connection goes to the checked address. Only http and https on ports 80
and 443 are allowed, without a user name or password in the URL, redirects or proxies. An allowlist permits
private networks and hosts.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from holdfast.errors import RefusedError

__all__ = [
    "EgressAllowlist",
    "EgressResponse",
    "EgressTarget",
    "EgressUrl",
    "IpAddress",
    "is_public_address",
    "parse_egress_url",
    "post_to_target",
    "resolve_egress_url",
]

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
MAX_RESPONSE_HEAD_BYTES = 65_536
_DEFAULT_PORT_BY_SCHEME = {"http": 80, "https": 443}
_NAT64_NETWORK = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class EgressAllowlist:
    """Exceptions to the ban on private networks: the networks and hosts that outgoing requests may reach.

    >>> from holdfast.egress import EgressAllowlist
    >>> EgressAllowlist.parse("10.0.0.0/8, hooks.internal").hosts
    frozenset({'hooks.internal'})
    """

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> EgressAllowlist:
        """Parse networks and host names, comma-separated."""
        networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        hosts: set[str] = set()
        for entry in (part.strip() for part in text.split(",")):
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError:
                hosts.add(entry.lower())
        return cls(tuple(networks), frozenset(hosts - {""}))


@dataclass(frozen=True)
class EgressTarget:
    """A resolved and allowed address to send a request to. `resolve_egress_url` creates it.

    >>> from holdfast.egress import EgressTarget, resolve_egress_url
    >>> async def main() -> None:
    ...     target: EgressTarget = await resolve_egress_url("https://example.com/hook")
    ...     print(target.address, target.port)
    """

    address: IpAddress
    port: int
    host: str
    secure: bool
    path: str


@dataclass(frozen=True)
class EgressResponse:
    """The status and the headers of a response. The body is not read.

    >>> from holdfast.egress import EgressResponse
    >>> EgressResponse(status=204, headers={}).status
    204
    """

    status: int
    headers: dict[str, str]


@dataclass(frozen=True)
class EgressUrl:
    """A valid URL, before its host name is resolved.

    >>> from holdfast.egress import EgressUrl, parse_egress_url
    >>> url: EgressUrl = parse_egress_url("https://example.com/hook?a=1")
    >>> url.host, url.port, url.path
    ('example.com', 443, '/hook?a=1')
    """

    host: str
    port: int
    secure: bool
    path: str


def parse_egress_url(url: str) -> EgressUrl:
    """Parse a URL. Raise RefusedError if requests to it are never allowed.

    >>> from holdfast.egress import parse_egress_url
    >>> parse_egress_url("http://example.com").secure
    False
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise RefusedError("The URL is not valid.", fix="Write https://host/path.", field="url") from None
    if parts.scheme not in _DEFAULT_PORT_BY_SCHEME or not host or any(ord(c) <= 32 for c in url):
        raise RefusedError("The URL must begin with http:// or https://.", field="url")
    if parts.username is not None or parts.password is not None:
        raise RefusedError("The URL must not contain a user name or a password.", field="url")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return EgressUrl(host, port or _DEFAULT_PORT_BY_SCHEME[parts.scheme], parts.scheme == "https", path)


async def resolve_egress_url(url: str, allowlist: EgressAllowlist = EgressAllowlist()) -> EgressTarget:  # noqa: B008  (frozen)
    """Resolve the host of a URL and check its addresses. Raise RefusedError if one is not allowed.

    >>> from holdfast.egress import EgressAllowlist, resolve_egress_url
    >>> async def main() -> None:
    ...     allowlist = EgressAllowlist.parse("127.0.0.0/8")
    ...     print((await resolve_egress_url("http://127.0.0.1:8700/", allowlist)).port)
    """
    parsed = parse_egress_url(url)
    is_allowed_host = parsed.host.lower() in allowlist.hosts
    addresses = await _resolve_host(parsed.host, parsed.port)
    for address in addresses:
        is_allowed = is_allowed_host or any(address in network for network in allowlist.networks)
        if not is_allowed and not is_public_address(address):
            raise RefusedError("The host of the URL is not on the public internet.", field="url")
    is_public = all(is_public_address(address) for address in addresses)
    if parsed.port not in _DEFAULT_PORT_BY_SCHEME.values() and not is_allowed_host and is_public:
        raise RefusedError("The port of the URL must be 80 or 443.", field="url")
    return EgressTarget(addresses[0], parsed.port, parsed.host, parsed.secure, parsed.path)


async def _resolve_host(host: str, port: int) -> list[IpAddress]:
    try:
        results = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in results]
    except (OSError, UnicodeError, ValueError):
        raise RefusedError("The host of the URL does not exist.", field="url") from None
    if not addresses:
        raise RefusedError("The host of the URL does not exist.", field="url")
    return addresses


def is_public_address(address: IpAddress) -> bool:
    """Return whether an address is public. For IPv6 with an embedded IPv4 address, check the IPv4 address.

    >>> from ipaddress import ip_address
    >>> from holdfast.egress import is_public_address
    >>> is_public_address(ip_address("8.8.8.8")), is_public_address(ip_address("::ffff:10.0.0.1"))
    (True, False)
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64_NETWORK:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public_address(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


async def post_to_target(
    target: EgressTarget, body: bytes, headers: dict[str, str], *, seconds: float = 15
) -> EgressResponse:
    """Send a POST request and return the status and the headers of the response.

    `seconds` is the maximum duration. The body of the response is not read.

    >>> from holdfast.egress import post_to_target, resolve_egress_url
    >>> async def main() -> None:
    ...     target = await resolve_egress_url("https://example.com/hook")
    ...     response = await post_to_target(target, b"{}", {"Content-Type": "application/json"})
    ...     print(response.status)
    """
    async with asyncio.timeout(seconds):
        context = ssl.create_default_context() if target.secure else None
        reader, writer = await asyncio.open_connection(
            str(target.address),
            target.port,
            ssl=context,
            server_hostname=target.host if context else None,
            limit=MAX_RESPONSE_HEAD_BYTES,
        )
        try:
            writer.write(_build_request(target, body, headers))
            await writer.drain()
            return _parse_response_head(await reader.readuntil(b"\r\n\r\n"))
        finally:
            writer.close()


def _build_request(target: EgressTarget, body: bytes, headers: dict[str, str]) -> bytes:
    default_port = 443 if target.secure else 80
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = {
        "Host": host if target.port == default_port else f"{host}:{target.port}",
        "User-Agent": "holdfast-webhook",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    path = target.path.encode("ascii", "ignore").decode()
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _parse_response_head(head: bytes) -> EgressResponse:
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
        raise ConnectionError("the server did not send an HTTP response")
    pairs = (line.partition(":") for line in lines if ":" in line)
    return EgressResponse(int(parts[1]), {name.strip().lower(): value.strip() for name, _, value in pairs})
