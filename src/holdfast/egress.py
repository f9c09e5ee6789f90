"""Requests to addresses that strangers chose, without becoming their way into our own network.

An address is looked up once. Every answer is checked, IPv4 and IPv6, also those that hide one in the other,
and the connection goes to the address that was checked, never to the name again. Only http and https, only
their usual ports, no name or password in the address, no redirects, no proxy. What is private can be
allowed by network or by name.
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

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
LONGEST_HEAD = 65_536
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Allowed:
    """Networks and names that may be reached although they are private."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Allowed:
        networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        hosts: set[str] = set()
        for each in (part.strip() for part in text.split(",")):
            try:
                networks.append(ipaddress.ip_network(each))
            except ValueError:
                hosts.add(each.lower())
        return cls(tuple(networks), frozenset(hosts - {""}))


@dataclass(frozen=True)
class Target:
    """Where a request goes: an address that was checked, and what is asked for there."""

    address: Address
    port: int
    host: str
    secure: bool
    path: str


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]


@dataclass(frozen=True)
class Place:
    """An address as it is written, before anything is looked up."""

    host: str
    port: int
    secure: bool
    path: str


def read(url: str) -> Place:
    """An address that could be called; RefusedError for one that never is."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise RefusedError("That is no address.", field="url") from None
    if parts.scheme not in _PORTS or not host or any(ord(c) <= 32 for c in url):
        raise RefusedError("Only http and https addresses are called.", field="url")
    if parts.username is not None or parts.password is not None:
        raise RefusedError("An address with a name or password is not called.", field="url")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(host, port or _PORTS[parts.scheme], parts.scheme == "https", path)


async def resolve(url: str, allowed: Allowed = Allowed()) -> Target:  # noqa: B008  (frozen)
    """Look an address up and check it; RefusedError for whatever is not for us to reach."""
    place = read(url)
    named = place.host.lower() in allowed.hosts
    found = await _look_up(place.host, place.port)
    for address in found:
        if not named and not is_public(address) and not any(address in net for net in allowed.networks):
            raise RefusedError("That address is not on the public internet.", field="url")
    if place.port not in _PORTS.values() and not named and all(is_public(address) for address in found):
        raise RefusedError("Only ports 80 and 443 are called.", field="url")
    return Target(found[0], place.port, place.host, place.secure, place.path)


async def _look_up(host: str, port: int) -> list[Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
    except (OSError, UnicodeError, ValueError):
        raise RefusedError("That host is not known.", field="url") from None
    if not addresses:
        raise RefusedError("That host is not known.", field="url")
    return addresses


def is_public(address: Address) -> bool:
    """Whether it is an address of the internet, looking into those that carry another one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


async def post(target: Target, body: bytes, headers: dict[str, str], *, seconds: float = 15) -> Answer:
    """Send a body and read the head of the answer; the rest of it is of no interest."""
    async with asyncio.timeout(seconds):
        context = ssl.create_default_context() if target.secure else None
        reader, writer = await asyncio.open_connection(
            str(target.address),
            target.port,
            ssl=context,
            server_hostname=target.host if context else None,
            limit=LONGEST_HEAD,
        )
        try:
            writer.write(_request(target, body, headers))
            await writer.drain()
            return _read(await reader.readuntil(b"\r\n\r\n"))
        finally:
            writer.close()


def _request(target: Target, body: bytes, headers: dict[str, str]) -> bytes:
    usual = 443 if target.secure else 80
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = {
        "Host": host if target.port == usual else f"{host}:{target.port}",
        "User-Agent": "holdfast-webhook",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    path = target.path.encode("ascii", "ignore").decode()
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _read(head: bytes) -> Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ConnectionError("the other side does not speak HTTP")
    pairs = (line.partition(":") for line in lines if ":" in line)
    return Answer(int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs})
