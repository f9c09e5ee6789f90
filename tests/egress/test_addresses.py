"""URLs that users chose cannot name a private network, in whatever notation."""

from __future__ import annotations

import ipaddress

import pytest

from holdfast.egress import EgressPolicy, EgressRefusedError, is_public_address, parse_egress_url
from holdfast.errors import RefusedError

PRIVATE_ADDRESSES = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.254", "127.0.0.1",
    "127.1.1.1", "169.254.0.1", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.8", "192.0.0.9",
    "192.0.0.170", "192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "198.18.0.1",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fc00::1", "fd00::1", "fdff::1", "fe80::1", "febf::1", "fec0::1",
    "ff02::1", "ff05::2", "2001:db8::1", "3fff::1", "100::1", "2001:2::1", "2001:10::1", "2001:20::1",
    "5f00::1", "4000::1", "::2", "1::1",
]  # fmt: skip
METADATA_ADDRESSES = [
    "169.254.169.254", "169.254.170.2", "168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::254",
    "fd20:ce::254", "fe80::a9fe:a9fe", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "::ffff:c000:c0",
]  # fmt: skip
EMBEDDED_ADDRESSES = [
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:192.168.1.1", "::ffff:0:0",
    "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:1", "64:ff9b:1::7f00:1",
    "64:ff9b:1::808:808", "64:ff9b:1:a00:0:100::", "2002:7f00:1::", "2002:a9fe:a9fe::", "2002:c0a8:101::",
    "2002:808:808::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:0:808:808::f7f7:f7f7", "::127.0.0.1",
    "::a9fe:a9fe", "::8.8.8.8", "2606:4700::5efe:a00:1", "2606:4700::200:5efe:7f00:1",
    "2a00:1450:4001:830:0:5efe:8.8.8.8",
]  # fmt: skip
PUBLIC_ADDRESSES = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.1", "168.63.129.17", "172.32.0.1",
    "192.0.1.1", "198.20.0.1", "223.255.255.255", "2606:4700:4700::1111", "2001:4860:4860::8888",
    "2a00:1450:4001:830::200e", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
]  # fmt: skip
OTHER_NOTATIONS = [
    "2130706433", "0x7f000001", "0177.0.0.1", "017700000001", "0x7f.1", "127.1", "127.0.1", "0", "0x0", "0.0",
    "3232235777", "0xa9fea9fe", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "127.000.000.001",
    "127.0.0.1.", "127.0.0.01", "0x7f.0x0.0x0.0x1", "4294967296", "127.0.0.1.1", "1.1.1.256", "a.0x7f",
    "\uff11\uff12\uff17.\uff10.\uff10.\uff11", "127\u30020\u30020\u30021", "127\uff0e0\uff0e0\uff0e1",
    "127\uff610\uff610\uff611", "\u2460\u2461\u2466.0.0.1", "127%2e0%2e0%2e1",
    "127.0.0.1%00", "loc%61lhost", "localhost%23", "[::1%25lo]", "[fe80::1%25eth0]", "[::1%lo]", "[::]",
    "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::1].", "[127.0.0.1]", "a..b", ".", "..", "-" * 64,
    "a" * 64 + ".test", ".".join(["abc"] * 70), "ex ample.test", "a\u00adb\x7f.test", "a:b:c",
]  # fmt: skip
REFUSED_URLS = [
    "ftp://1.1.1.1/", "file:///etc/passwd", "gopher://1.1.1.1/", "javascript:alert(1)", "data:text/plain,x",
    "ws://1.1.1.1/", "//1.1.1.1/", "1.1.1.1", "", " ", "http://", "http:///x", "https://user@1.1.1.1/",
    "https://user:pass@1.1.1.1/", "https://1.1.1.1@127.0.0.1/", "https://@1.1.1.1/", "http://a b/",
    "http://1.1.1.1/\r\nHost: x", "http://1.1.1.1/\n", "http://1.1.1.1:99999/", "http://1.1.1.1:0/",
    "http://1.1.1.1:x/", "http://[::1", "http://1.1.1.1/\x00", "http://\t1.1.1.1/", "http://1.1.1.1\\@x.test/",
    "http:\\\\1.1.1.1/", "http://1.1.1.1/a\\..\\b", "dict://1.1.1.1:11211/", "ldap://1.1.1.1/",
    "unix:/run/x.sock", "http+unix://x/", "https://x.test/" + "a" * 9000, "blob:http://1.1.1.1/x",
]  # fmt: skip


@pytest.mark.parametrize("address", [*PRIVATE_ADDRESSES, *METADATA_ADDRESSES, *EMBEDDED_ADDRESSES])
async def test_private_addresses_are_refused_on_every_port(address: str) -> None:
    assert not is_public_address(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    for url in (f"http://{host}/", f"https://{host}/x?y=1", f"http://{host}:8080/", f"https://{host}:22/"):
        parsed = parse_egress_url(url)
        with pytest.raises(EgressRefusedError, match="not on the public internet"):
            await EgressPolicy().resolve(parsed.host, parsed.port)


@pytest.mark.parametrize("address", PUBLIC_ADDRESSES)
async def test_public_addresses_are_allowed_on_ports_80_and_443(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    parsed = parse_egress_url(f"https://{host}/a?b")
    assert parsed.path == "/a?b"
    assert await EgressPolicy().resolve(parsed.host, parsed.port)
    with pytest.raises(RefusedError, match="must be 80 or 443"):
        await EgressPolicy().resolve(parsed.host, 8080)
    assert await EgressPolicy(ports=frozenset({8080})).resolve(parsed.host, 8080)


@pytest.mark.parametrize("host", OTHER_NOTATIONS)
async def test_other_notations_of_addresses_and_names_are_refused(host: str) -> None:
    async def resolve() -> None:
        parsed = parse_egress_url(f"http://{host}/")
        await EgressPolicy().resolve(parsed.host, parsed.port)

    with pytest.raises(EgressRefusedError):
        await resolve()


@pytest.mark.parametrize("host", ["localhost", "localhost.", "LOCALHOST"])
async def test_names_of_this_machine_are_refused(host: str) -> None:
    parsed = parse_egress_url(f"http://{host}/")
    with pytest.raises(EgressRefusedError, match="not on the public internet"):
        await EgressPolicy().resolve(parsed.host, parsed.port)


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(EgressRefusedError) as caught:
        parse_egress_url(url)
    assert (caught.value.field, caught.value.retryable) == ("url", False)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTPS://Example.COM./A", "https://example.com/A"),
        ("http://bücher.test/", "http://xn--bcher-kva.test/"),
        ("http://faß.test/", "http://xn--fa-hia.test/"),
        ("http://ドメイン。テスト/", "http://xn--eckwd4c7c.xn--zckzah/"),
        ("http://x.test:80/", "http://x.test/"),
        ("https://x.test:80", "https://x.test:80/"),
        ("https://x.test/ä?ö=ü#fragment", "https://x.test/%C3%A4?%C3%B6=%C3%BC"),
        ("https://x.test/a%20b?c=%2F", "https://x.test/a%20b?c=%2F"),
        ("https://[2606:4700::1111]:8443/", "https://[2606:4700::1111]:8443/"),
        ("http://[::ffff:8.8.8.8]/", "http://8.8.8.8/"),
        ("https://under_score.x.test/", "https://under_score.x.test/"),
        ("https://x.test/" + "a" * 2000, "https://x.test/" + "a" * 2000),
    ],
)
def test_valid_urls_have_one_notation(url: str, expected: str) -> None:
    assert str(parse_egress_url(url)) == expected
