"""The guarded proxy with raw clients and with curl: password, policy, limits, refusals."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from certificates import CertificateAuthority
from outside_programs import find_program
from web_servers import RecordedRequest, WebServer, respond, run_web_server, send_raw

from holdfast.egress import EgressAllowlist, EgressPolicy, GuardedProxy, ProxyLimits
from holdfast.egress.policy import Resolver
from holdfast.testing import wait_until


@asynccontextmanager
async def run_proxy(
    *servers: WebServer, resolver: Resolver | None = None, limits: ProxyLimits | None = None
) -> AsyncGenerator[GuardedProxy]:
    """Run a proxy that may reach these servers, besides the public internet."""
    allowlist = EgressAllowlist.parse(",".join(server.authority for server in servers))
    async with GuardedProxy(EgressPolicy(allowlist=allowlist, resolver=resolver), limits) as proxy:
        yield proxy


async def run_curl(*arguments: str) -> tuple[int, str]:
    """Run curl without the settings of this machine. Return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        find_program("curl"), "-q", "--silent", "--show-error", "--noproxy", "", "--max-time", "60",
        *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={},
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode(errors="replace")


async def send_to_proxy(proxy: GuardedProxy, data: bytes) -> bytes:
    """Send raw bytes to the proxy and return its whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


def build_authorization(proxy: GuardedProxy, *, password: str | None = None) -> bytes:
    from base64 import b64encode  # noqa: PLC0415

    credentials = f"{proxy.username}:{proxy.password if password is None else password}"
    return b"Proxy-Authorization: Basic " + b64encode(credentials.encode()) + b"\r\n"


async def test_curl_reaches_allowed_servers_over_http_and_https(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    context = authority.create_server_context("127.0.0.1")
    async with (
        run_web_server(respond(b"plain")) as plain,
        run_web_server(respond(b"secure"), ssl_context=context) as secure,
        run_proxy(plain, secure) as proxy,
    ):
        assert await run_curl("--proxy", proxy.url, f"{plain.url}/a?b") == (0, "plain")
        url = f"https://{secure.authority}/"
        assert await run_curl("--proxy", proxy.url, "--insecure", url) == (0, "secure")
        # A tunnel also carries http, and a request body.
        assert await run_curl("--proxy", proxy.url, "--proxytunnel", "-d", "x=1", plain.url) == (
            0,
            "plain",
        )
        assert await run_curl("--proxy", proxy.url, "-d", "x=2", plain.url) == (0, "plain")
        chunked = ("-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue", "-d", "x=3")
        assert await run_curl("--proxy", proxy.url, *chunked, plain.url) == (0, "plain")
        assert await run_curl("--proxy", proxy.url, "--head", plain.url) != (0, "")
        assert proxy.refusals == ()
        assert proxy.bytes_received > len("plain" * 4)
        assert proxy.bytes_sent > 0
    first = plain.requests[0]
    assert (first.target, first.headers["host"]) == ("/a?b", plain.authority)
    assert not {"proxy-authorization", "proxy-connection"} & first.headers.keys()
    assert [request.body for request in plain.requests[1:4]] == [b"x=1", b"x=2", b"x=3"]


async def test_programs_use_the_proxy_of_their_environment() -> None:
    async with run_web_server(respond(b"ok")) as server, run_proxy(server) as proxy:
        process = await asyncio.create_subprocess_exec(
            find_program("curl"),
            "-q", "--silent", "--max-time", "60", server.url, f"http://127.0.0.1:{proxy.port}/",
            stdout=asyncio.subprocess.PIPE, env=proxy.environment,
        )  # fmt: skip
        output, _ = await process.communicate()
    assert output.startswith(b"ok")
    assert proxy.bytes_received == 2
    assert len(proxy.refusals) == 1  # the proxy does not reach itself either


@pytest.mark.parametrize("tunnel", [False, True])
async def test_curl_cannot_reach_private_addresses(tunnel: bool) -> None:
    async def resolver(host: str) -> list[str]:
        return {"mixed.test": ["1.1.1.1", "127.0.0.1"]}.get(host, ["127.0.0.1"])

    options = ["--proxytunnel"] if tunnel else []
    async with run_web_server(respond(b"secret")) as canary, run_proxy(resolver=resolver) as proxy:
        hosts = [
            "127.0.0.1", "127.0.0.2", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433",
            "0x7f.1", "0177.0.0.1", "127.1", "private.test", "mixed.test", "localhost.", "169.254.169.254",
            "168.63.129.16", "192.0.0.192", "[64:ff9b::7f00:1]",
        ]  # fmt: skip
        for host in hosts:
            _, output = await run_curl(
                "--proxy", proxy.url, *options, "--globoff", "--path-as-is",
                "--write-out", "%{http_code} %{http_connect}", f"http://{host}:{canary.port}/secret",
            )  # fmt: skip
            assert output.rstrip().endswith("000 403" if tunnel else "403 000"), (host, output)
        assert len(proxy.refusals) == len(hosts)
    assert canary.connections == 0
    assert {refusal.method for refusal in proxy.refusals} == {"CONNECT" if tunnel else "GET"}
    assert "public internet" in proxy.refusals[0].reason


async def test_names_are_resolved_once_for_each_connection() -> None:
    """DNS rebinding: the second answer of the name server is a private address."""
    answers = iter([["127.0.0.2"], ["127.0.0.1"]])

    async def rebind(_: str) -> list[str]:
        return next(answers)

    async with (
        run_web_server(respond(b"ok"), host="127.0.0.2") as public,
        run_web_server(respond(b"secret"), port=public.port) as canary,
        run_proxy(public, resolver=rebind) as proxy,
    ):
        url = f"http://rebinding.test:{public.port}/"
        assert await run_curl("--proxy", proxy.url, "--proxytunnel", url) == (0, "ok")
        code, output = await run_curl("--proxy", proxy.url, "--proxytunnel", url)
        assert code != 0
        assert "403" in output
    assert canary.connections == 0


async def test_requests_without_the_password_are_refused() -> None:
    async with run_web_server(respond(b"secret")) as server, run_proxy(server) as proxy:
        wrong = [
            b"",
            build_authorization(proxy, password="wrong"),
            build_authorization(proxy, password=""),
            b"Authorization" + build_authorization(proxy)[len(b"Proxy-Authorization") :],
            build_authorization(proxy) + build_authorization(proxy),
            b"Proxy-Authorization: Bearer x\r\n",
        ]
        for header in wrong:
            for line in (f"GET {server.url}/ HTTP/1.1", f"CONNECT {server.authority} HTTP/1.1"):
                head = f"{line}\r\nHost: {server.authority}\r\n".encode() + header + b"\r\n"
                answer = await send_to_proxy(proxy, head)
                assert answer.startswith(b"HTTP/1.1 407 "), answer
                assert b"Proxy-Authenticate: Basic" in answer
        async with run_proxy(server) as other:
            assert other.password != proxy.password
    assert server.connections == 0


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET / HTTP/1.1", 403),
        ("GET ftp://x.test/ HTTP/1.1", 403),
        ("GET file:///etc/passwd HTTP/1.1", 403),
        ("GET https://x.test/ HTTP/1.1", 403),
        ("GET ws://x.test/ HTTP/1.1", 403),
        ("GET http://u:p@x.test/ HTTP/1.1", 403),
        ("TRACE http://x.test/ HTTP/1.1", 403),
        ("GET http://x.test/ HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade", 403),
        ("CONNECT x.test HTTP/1.1", 403),
        ("CONNECT x.test:0 HTTP/1.1", 403),
        ("CONNECT x.test:22 HTTP/1.1", 403),
        ("CONNECT x.test:443\r\nContent-Length: 5 HTTP/1.1", 400),
        ("CONNECT http://x.test:443/ HTTP/1.1", 403),
        ("CONNECT ::1:443 HTTP/1.1", 403),
        ("CONNECT [::1]:443 HTTP/1.1", 403),
        ("CONNECT [fe80::1%25eth0]:443 HTTP/1.1", 403),
        ("CONNECT 127.0.0.1:443 HTTP/1.1", 403),
        ("CONNECT unknown.test:443 HTTP/1.1", 502),
        ("GET http://unknown.test/ HTTP/1.1", 502),
        ("nonsense", 400),
    ],
)
async def test_other_requests_are_refused(line: str, status: int) -> None:
    async def resolver(host: str) -> list[str]:
        return [] if host == "unknown.test" else ["1.1.1.1"]

    async with run_proxy(resolver=resolver) as proxy:
        head = f"{line}\r\nHost: x.test\r\n".encode() + build_authorization(proxy) + b"\r\n"
        answer = await send_to_proxy(proxy, head)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        assert len(proxy.refusals) == (status == 403)


async def test_a_websocket_passes_through_a_tunnel_of_an_allowed_server() -> None:
    async def echo(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nframe"
        )

    async with run_web_server(echo) as server, run_proxy(server) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(
            f"CONNECT {server.authority} HTTP/1.1\r\nHost: x\r\n".encode() + build_authorization(proxy)
        )
        # The request comes together with the head of the tunnel, as some clients send it.
        writer.write(b"\r\nGET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert b"200 Connection established\r\n\r\nHTTP/1.1 101 " in answer
    assert answer.endswith(b"frame")


async def test_bytes_are_limited_over_all_connections() -> None:
    async with (
        run_web_server(respond(b"x" * 40_000)) as server,
        run_proxy(server, limits=ProxyLimits(max_bytes=100_000)) as proxy,
    ):
        for _ in range(2):
            code, output = await run_curl("--proxy", proxy.url, server.url)
            assert (code, len(output)) == (0, 40_000)
        code, _ = await run_curl("--proxy", proxy.url, server.url)
        assert code != 0
        _, output = await run_curl("--proxy", proxy.url, server.url)
        assert "More than 100000 bytes" in output
        _, output = await run_curl("--proxy", proxy.url, "--proxytunnel", server.url)
        assert "403" in output
    assert len(server.requests) == 3
    assert all("100000 bytes" in refusal.reason for refusal in proxy.refusals)


async def test_connections_are_limited() -> None:
    async with run_proxy(limits=ProxyLimits(max_connections=2)) as proxy:
        held = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(2)]
        await wait_until(lambda: proxy._state.open_connections == 2)
        head = b"GET http://x.test/ HTTP/1.1\r\nHost: x\r\n" + build_authorization(proxy) + b"\r\n"
        assert b"More than 2 connections are open" in await send_to_proxy(proxy, head)
        for _, writer in held:
            writer.close()


async def test_idle_tunnels_are_closed() -> None:
    async with run_web_server(respond()) as server:
        limits = ProxyLimits(idle_timeout=timedelta(milliseconds=100))
        async with run_proxy(server, limits=limits) as proxy:
            head = f"CONNECT {server.authority} HTTP/1.1\r\nHost: x\r\n".encode()
            answer = await send_to_proxy(proxy, head + build_authorization(proxy) + b"\r\n")
            assert b"200 Connection established" in answer


async def test_the_lifetime_of_the_proxy_ends_its_connections() -> None:
    async with run_web_server(respond()) as server:
        limits = ProxyLimits(lifetime=timedelta(milliseconds=500))
        async with run_proxy(server, limits=limits) as proxy:
            head = f"CONNECT {server.authority} HTTP/1.1\r\nHost: x\r\n".encode()
            authorization = build_authorization(proxy)
            await send_to_proxy(proxy, head + authorization + b"\r\n")
            answer = await send_to_proxy(proxy, head + authorization + b"\r\n")
            assert b"lifetime of the proxy has ended" in answer


async def test_closing_the_proxy_ends_its_connections_and_its_port() -> None:
    async with run_web_server(respond()) as server:
        async with run_proxy(server) as proxy:
            port = proxy.port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT {server.authority} HTTP/1.1\r\nHost: x\r\n".encode())
            writer.write(build_authorization(proxy) + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_responses_of_servers_are_passed_on_as_http() -> None:
    garbage = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"
    async with (
        run_web_server(send_raw(garbage)) as liar,
        run_web_server(send_raw(b"SSH-2.0\r\n")) as other,
        run_proxy(liar, other) as proxy,
    ):
        code, output = await run_curl("--proxy", proxy.url, liar.url)
        assert (code, "short" in output) == (18, True)  # curl: the transfer ended early
        _, output = await run_curl("--proxy", proxy.url, other.url)
        assert "did not send a valid HTTP response" in output


async def test_redirects_are_requests_of_the_program_and_checked_again() -> None:
    async with (
        run_web_server(respond(b"secret")) as canary,
        run_web_server(respond(status=302, Location=canary.url), host="127.0.0.2") as server,
        run_proxy(server) as proxy,
    ):
        _, output = await run_curl("--proxy", proxy.url, "--location", server.url)
        assert "public internet" in output
    assert canary.connections == 0


IMPORTS_NOTHING_LATER = """
import asyncio, sys
from holdfast.egress import EgressPolicy, GuardedProxy

class RefuseImports:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("holdfast"):
            raise SystemError(f"{name} is imported while the proxy serves")

async def main():
    async with GuardedProxy(EgressPolicy()) as proxy:
        sys.meta_path.insert(0, RefuseImports())
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET http://example.com/ HTTP/1.1\\r\\nHost: example.com\\r\\n\\r\\n")
        print((await asyncio.wait_for(reader.readline(), 20)).decode())

asyncio.run(main())
"""


async def test_an_open_proxy_imports_nothing_more() -> None:
    # An import that fails after the connection was accepted leaves the program waiting for ever.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", IMPORTS_NOTHING_LATER,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert "407" in output.decode(), output.decode()
