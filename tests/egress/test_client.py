"""The guarded client against real servers: requests, redirects, pinned addresses, limits per host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import CertificateAuthority
from web_servers import RecordedRequest, Responder, respond, run_web_server

from holdfast import telemetry
from holdfast.egress import (
    EgressAllowlist,
    EgressClient,
    EgressContentTypeError,
    EgressPolicy,
    EgressRedirectError,
    EgressRefusedError,
    EgressTlsError,
    EgressTooLargeError,
    request_blocking,
)
from holdfast.egress.policy import Resolver
from holdfast.errors import InvalidError


def allow(*entries: str, resolver: Resolver | None = None) -> EgressPolicy:
    return EgressPolicy(allowlist=EgressAllowlist.parse(",".join(entries)), resolver=resolver)


def respond_by_path(**responders: Responder) -> Responder:
    async def responder(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        await responders[request.target.strip("/").partition("?")[0] or "root"](request, writer)

    return responder


async def test_get_head_and_post() -> None:
    async with (
        run_web_server(respond(b"hello", Content_Type="Text/Plain; charset=x", X_A="1")) as server,
        EgressClient(allow(server.authority)) as client,
    ):
        response = await client.get(f"{server.url}/a?b=ä", headers={"X-Own": "ü"})
        assert (response.status, response.body) == (200, b"hello")
        assert (response.content_type, response.headers["x-a"]) == ("text/plain", "1")
        assert response.url == f"{server.url}/a?b=%C3%A4"
        await client.head(server.url)
        await client.post(server.url, b"body", headers={"Content-Type": "text/x"})
        await client.post(server.url)
    get, head, post, empty = server.requests
    assert (get.method, get.target, get.headers["host"]) == ("GET", "/a?b=%C3%A4", server.authority)
    assert get.headers["user-agent"].startswith("holdfast/")
    assert get.headers["accept-encoding"] == "gzip, deflate, br, zstd"
    assert (head.method, post.method, post.body) == ("HEAD", "POST", b"body")
    assert empty.headers["content-length"] == "0"


async def test_bodies_are_streamed_both_ways() -> None:
    async def respond_in_pieces(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        await first_piece_was_read.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")

    async def generate_body() -> AsyncGenerator[bytes]:
        yield b"one"
        yield b""
        yield b"two"

    first_piece_was_read = asyncio.Event()
    pieces = []
    async with (
        run_web_server(respond_in_pieces) as server,
        EgressClient(allow(server.authority)) as client,
        client.stream("POST", server.url, generate_body()) as response,
    ):
        async for piece in response.iterate_bytes():
            pieces.append(piece)
            first_piece_was_read.set()
    assert b"".join(pieces) == b"firstsecond"
    assert server.requests[0].body == b"onetwo"


async def test_private_servers_are_not_called_and_the_refusal_is_emitted() -> None:
    events: list[tuple[str, dict[str, object]]] = []
    async with run_web_server(respond(b"secret")) as server, EgressClient(EgressPolicy()) as client:
        with (
            telemetry.subscription(lambda name, fields: events.append((name, fields))),
            pytest.raises(EgressRefusedError, match="public internet"),
        ):
            await client.get(server.url)
    assert server.connections == 0
    [(name, fields)] = events
    assert (name, fields["source"], fields["target"]) == ("egress.refused", "client", server.url)


async def test_every_redirect_is_checked_again() -> None:
    async with run_web_server(respond(b"secret")) as private:
        for location in (
            private.url,
            f"//{private.authority}/x",
            f"http://localhost:{private.port}/",
            f"http://[::ffff:127.0.0.1]:{private.port}/",
            f"http://2130706433:{private.port}/",
            "http://169.254.169.254/latest/meta-data/",
            "file:///etc/passwd",
            "gopher://x.test/",
            "http://user:password@x.test/",
        ):
            for status in (301, 302, 303, 307, 308):
                redirect = respond(status=status, Location=location)
                async with (
                    run_web_server(redirect, host="127.0.0.2") as server,
                    EgressClient(allow(server.authority)) as client,
                ):
                    with pytest.raises(EgressRefusedError):
                        await client.get(server.url)
                    assert len(server.requests) == 1
    assert private.connections == 0


async def test_redirects_follow_the_rules_for_methods() -> None:
    for status, method, expected in (
        (301, "POST", "GET"), (302, "POST", "GET"), (303, "POST", "GET"), (307, "POST", "POST"),
        (308, "POST", "POST"), (303, "HEAD", "HEAD"), (302, "HEAD", "HEAD"), (307, "GET", "GET"),
    ):  # fmt: skip
        pages = respond_by_path(root=respond(status=status, Location="next"), next=respond(b"end"))
        async with run_web_server(pages) as server, EgressClient(allow(server.authority)) as client:
            body = b"body" if method == "POST" else None
            headers = {"Content-Type": "text/x"} if body else {}
            async with client.stream(method, server.url, body, headers=headers) as response:  # type: ignore[arg-type]
                assert response.url == f"{server.url}/next"
        last = server.requests[-1]
        assert (last.method, last.body) == (expected, b"body" if expected == "POST" else b"")
        assert ("content-type" in last.headers) == (expected == "POST")


async def test_credentials_are_not_sent_to_another_origin() -> None:
    secrets = {"Authorization": "Bearer x", "Cookie": "a=b", "X-Api-Key": "k", "Accept-Language": "de"}
    async with run_web_server(respond(b"end")) as other:
        pages = respond_by_path(
            root=respond(status=302, Location="/same"), same=respond(status=307, Location=other.url)
        )
        async with (
            run_web_server(pages) as server,
            EgressClient(allow(server.authority, other.authority)) as client,
        ):
            await client.get(server.url, headers=secrets)
    assert server.requests[1].headers["authorization"] == "Bearer x"
    assert other.requests[0].headers["accept-language"] == "de"
    assert not {"authorization", "cookie", "x-api-key"} & other.requests[0].headers.keys()


async def test_redirect_loops_and_streamed_bodies_end() -> None:
    async def generate_body() -> AsyncGenerator[bytes]:
        yield b"once"

    async with run_web_server(respond(status=307, Location="/")) as server:
        policy = replace(allow(server.authority), max_redirects=3)
        async with EgressClient(policy) as client:
            with pytest.raises(EgressRedirectError, match="more than 3 redirects"):
                await client.get(server.url)
            assert len(server.requests) == 4
            with pytest.raises(EgressRedirectError, match="cannot be sent again"):
                await client.post(server.url, generate_body())
            async with client.stream("GET", server.url, follow_redirects=False) as response:
                assert (response.status, response.headers["location"]) == (307, "/")


async def test_a_name_that_changes_its_address_reaches_the_checked_address_only() -> None:
    """DNS rebinding: the name server returns an allowed address first and a private one later."""
    answers = [["127.0.0.2"], ["127.0.0.1"]]
    lookups = []

    async def rebind(host: str) -> list[str]:
        lookups.append(host)
        return answers[min(len(lookups), 2) - 1]

    async with (
        run_web_server(respond(b"ok"), host="127.0.0.2") as public,
        run_web_server(respond(b"secret"), host="127.0.0.1", port=public.port) as private,
    ):
        policy = allow(f"127.0.0.2:{public.port}", resolver=rebind)
        async with EgressClient(policy) as client:
            assert (await client.get(f"http://rebinding.test:{public.port}/")).body == b"ok"
            assert lookups == ["rebinding.test"]
            with pytest.raises(EgressRefusedError):
                await client.get(f"http://rebinding.test:{public.port}/")
    assert private.connections == 0
    assert public.requests[0].headers["host"] == f"rebinding.test:{public.port}"


async def test_the_next_address_is_tried_when_one_refuses_the_connection() -> None:
    async def resolver(_: str) -> list[str]:
        return ["127.0.0.3", "127.0.0.1"]

    async with (
        run_web_server(respond(b"ok")) as server,
        EgressClient(allow("127.0.0.0/8", resolver=resolver)) as client,
    ):
        assert (await client.get(f"http://two.test:{server.port}/")).body == b"ok"


async def test_tls_verifies_the_name_at_the_pinned_address(tmp_path: Path) -> None:
    async def resolver(_: str) -> list[str]:
        return ["127.0.0.1"]

    authority = CertificateAuthority(tmp_path)
    context = authority.create_server_context("good.test")
    async with run_web_server(respond(b"ok"), ssl_context=context) as server:
        policy = allow(f"127.0.0.1:{server.port}", resolver=resolver)
        async with EgressClient(policy, ssl_context=authority.client_context) as client:
            assert (await client.get(f"https://good.test:{server.port}/")).body == b"ok"
            for url in (f"https://other.test:{server.port}/", f"https://127.0.0.1:{server.port}/"):
                with pytest.raises(EgressTlsError) as caught:
                    await client.get(url)
                assert not caught.value.retryable
        async with EgressClient(policy) as client:  # does not know the authority
            with pytest.raises(EgressTlsError):
                await client.get(f"https://good.test:{server.port}/")


async def test_servers_without_tls_are_tls_errors() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 This server speaks first and has no TLS\r\n")

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    authority = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with EgressClient(allow(authority)) as client:
        with pytest.raises(EgressTlsError):
            await client.get(f"https://{authority}/")
    server.close()


async def test_content_types_are_limited_for_successful_responses() -> None:
    pages = respond_by_path(
        image=respond(b"x", Content_Type="image/png"),
        html=respond(b"x", Content_Type="text/html"),
        none=respond(b"x"),
        missing=respond(b"x", status=404, Content_Type="text/html"),
    )
    async with run_web_server(pages) as server:
        policy = replace(allow(server.authority), content_types=frozenset({"image/*"}))
        async with EgressClient(policy) as client:
            assert (await client.get(f"{server.url}/image")).body == b"x"
            assert (await client.get(f"{server.url}/missing")).status == 404
            for path in ("html", "none"):
                with pytest.raises(EgressContentTypeError):
                    await client.get(f"{server.url}/{path}")


async def test_request_bodies_are_limited() -> None:
    async def generate_body() -> AsyncGenerator[bytes]:
        while True:
            yield b"x" * 100

    async with (
        run_web_server(respond()) as server,
        EgressClient(replace(allow(server.authority), max_request_bytes=1000)) as client,
    ):
        for body in (b"x" * 1001, generate_body()):
            with pytest.raises(EgressTooLargeError, match="request body"):
                await client.post(server.url, body)


@pytest.mark.parametrize(
    "headers", [{"Host": "x"}, {"content-length": "1"}, {"Transfer-Encoding": "chunked"}, {"X": "a\r\nY: b"},
                {"Proxy-Authorization": "x"}, {"Upgrade": "websocket"}, {"X\r\nY": "b"}]
)  # fmt: skip
async def test_headers_that_frame_the_request_cannot_be_set(headers: dict[str, str]) -> None:
    async with EgressClient(EgressPolicy()) as client:
        with pytest.raises(InvalidError):
            await client.get("https://x.test/", headers=headers)


async def test_requests_to_one_host_are_limited() -> None:
    running, max_running = 0, 0
    all_slots_used, release = asyncio.Event(), asyncio.Event()

    async def hold(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal running, max_running
        running += 1
        max_running = max(max_running, running)
        if running == 2:
            all_slots_used.set()
        await release.wait()
        running -= 1
        await respond(b"ok")(request, writer)

    async with run_web_server(hold) as server:
        policy = replace(allow(server.authority), max_connections_per_host=2, max_requests_per_second=1000)
        async with EgressClient(policy) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.get(server.url)) for _ in range(6)]
            await all_slots_used.wait()
            release.set()
        assert [task.result().body for task in tasks] == [b"ok"] * 6
    assert max_running == 2


async def test_requests_to_one_host_start_at_the_rate_of_the_policy() -> None:
    starts: list[float] = []

    async def note_start(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        starts.append(asyncio.get_running_loop().time())
        await respond(b"ok")(request, writer)

    async with run_web_server(note_start) as server:
        policy = replace(allow(server.authority), max_requests_per_second=20)
        async with EgressClient(policy) as client:
            begun_at = asyncio.get_running_loop().time()
            await asyncio.gather(*(client.get(server.url) for _ in range(7)))
    # A slow machine makes it longer, never shorter. Without the limit, all start at once.
    assert len(starts) == 7
    assert max(starts) - begun_at >= 6 / 20


def test_blocking_code_can_send_requests() -> None:
    with pytest.raises(EgressRefusedError):
        request_blocking("GET", "http://127.0.0.1/", policy=EgressPolicy())


def test_the_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with run_web_server(respond(b"proxy")) as proxy, run_web_server(respond(b"ok")) as server:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            async with EgressClient(allow(server.authority)) as client:
                assert (await client.get(server.url)).body == b"ok"
            assert proxy.connections == 0

    asyncio.run(run())
