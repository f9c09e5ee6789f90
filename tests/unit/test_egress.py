"""URLs that users chose cannot reach a private network, in whatever notation."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import pytest

from holdfast import egress
from holdfast.egress import EgressAllowlist, is_public_address, parse_egress_url, resolve_egress_url
from holdfast.errors import RefusedError

PRIVATE_ADDRESSES = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.254", "127.0.0.1",
    "127.1.1.1", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1",
    "192.168.0.1",
    "192.168.255.255", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1",
    "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1", "fc00::1", "fd00::1", "fdff::1",
    "fe80::1",
    "febf::1", "fec0::1", "ff02::1", "ff05::2", "2001:db8::1", "100::1", "2001:2::1", "2001:10::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:192.168.1.1", "::ffff:0:0",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::",
    "2002:c0a8:101::", "2001:0:4136:e378:8000:63bf:80ff:fffe", "::127.0.0.1", "::a9fe:a9fe",
]  # fmt: skip
PUBLIC_ADDRESSES = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
]
OBFUSCATED_ADDRESSES = [
    "2130706433", "0x7f000001", "0177.0.0.1", "017700000001", "0x7f.1", "127.1", "127.0.1", "localhost",
    "localhost.", "LOCALHOST", "0", "0x0", "0.0", "3232235777", "0xa9fea9fe", "2852039166", "0xA9FEA9FE",
    "0251.0376.0251.0376", "127.000.000.001",
]  # fmt: skip
REFUSED_URLS = [
    "ftp://1.1.1.1/", "file:///etc/passwd", "gopher://1.1.1.1/", "javascript:alert(1)", "data:text/plain,x",
    "ws://1.1.1.1/", "//1.1.1.1/", "1.1.1.1", "", " ", "http://", "http:///x", "https://user@1.1.1.1/",
    "https://user:pass@1.1.1.1/", "https://1.1.1.1@127.0.0.1/", "http://a b/", "http://1.1.1.1/\r\nHost: x",
    "http://1.1.1.1/\n", "http://1.1.1.1:99999/", "http://1.1.1.1:x/", "http://[::1", "http://1.1.1.1/\x00",
    "http://\t1.1.1.1/", "dict://1.1.1.1:11211/", "ldap://1.1.1.1/", "unix:/run/x.sock", "http+unix://x/",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE_ADDRESSES)
async def test_private_addresses_are_refused_in_both_schemes_and_any_port(address: str) -> None:
    assert not is_public_address(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    for url in (f"http://{host}/", f"https://{host}/x?y=1", f"http://{host}:8080/", f"https://{host}:22/"):
        with pytest.raises(RefusedError):
            await resolve_egress_url(url)


@pytest.mark.parametrize("host", OBFUSCATED_ADDRESSES)
async def test_other_notations_of_private_addresses_are_refused(host: str) -> None:
    with pytest.raises(RefusedError):
        await resolve_egress_url(f"http://{host}/")


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(RefusedError):
        parse_egress_url(url)


@pytest.mark.parametrize("address", PUBLIC_ADDRESSES)
async def test_public_addresses_are_allowed_on_ports_80_and_443(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    assert (await resolve_egress_url(f"https://{host}/a?b")).path == "/a?b"
    with pytest.raises(RefusedError, match="must be 80 or 443"):
        await resolve_egress_url(f"http://{host}:8080/")


async def test_a_name_with_one_private_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [("1.1.1.1", "2606:4700::1"), ("1.1.1.1", "10.0.0.1"), ("1.1.1.1", "::1"), ("fd00::1",)]

    def build_fake_resolver(*addresses: str) -> Any:
        async def getaddrinfo(*_: object, **__: object) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, 443)) for each in addresses]

        return getaddrinfo

    for number, addresses in enumerate(answers):
        monkeypatch.setattr(
            asyncio.get_running_loop(), "getaddrinfo", build_fake_resolver(*addresses), raising=False
        )
        if number == 0:
            assert str((await resolve_egress_url("https://rebinding.test/")).address) == "1.1.1.1"
            continue
        with pytest.raises(RefusedError):
            await resolve_egress_url("https://rebinding.test/")


async def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is resolved once, so a name server cannot return another address later."""
    lookups = 0
    requested = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        requested.set()
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nRetry-After: 7\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    original = loop.getaddrinfo

    async def counting(host: Any, *more: Any, **named: Any) -> Any:
        nonlocal lookups
        if host == "hooks.test":
            lookups += 1
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]
        return await original(host, *more, **named)

    monkeypatch.setattr(loop, "getaddrinfo", counting, raising=False)
    target = await resolve_egress_url(f"http://hooks.test:{port}/x", EgressAllowlist.parse("hooks.test"))
    response = await egress.post_to_target(target, b"{}", {"Content-Type": "application/json"})
    assert requested.is_set()
    assert (response.status, response.headers["retry-after"], lookups) == (302, "7", 1)
    server.close()


async def test_the_allowlist_permits_networks_and_hosts() -> None:
    allowed = EgressAllowlist.parse("127.0.0.0/8, intranet.test ,, ::1/128")
    assert str((await resolve_egress_url("http://127.0.0.1:9999/", allowed)).address) == "127.0.0.1"
    assert str((await resolve_egress_url("http://[::1]/", allowed)).address) == "::1"
    with pytest.raises(RefusedError):
        await resolve_egress_url("http://10.0.0.1/", allowed)
    assert allowed.hosts == {"intranet.test"}
