"""The guarded client against servers that stall, lie, send endless or damaged data, or no HTTP at all."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import brotli  # type: ignore[import-untyped]
import pytest
from backports import zstd
from web_servers import RecordedRequest, Responder, respond, run_web_server, send_raw

from holdfast.egress import (
    EgressAllowlist,
    EgressClient,
    EgressConnectError,
    EgressError,
    EgressPolicy,
    EgressResponse,
    EgressResponseError,
    EgressTimeoutError,
    EgressTooLargeError,
)

OK = b"HTTP/1.1 200 OK\r\n"
# A frame whose window of 128 MB would have to be allocated. HTTP allows 8 MB.
LARGE_WINDOW = bytes.fromhex("28b52ffd 00 88 010000")


def gzip_data(data: bytes) -> bytes:
    """Compress without a time stamp: the names of tests contain their data and must not change."""
    return gzip.compress(data, mtime=0)


async def fetch(responder: Responder, **limits: object) -> EgressResponse:
    """Fetch the page of a server with a policy that allows just this server."""
    async with run_web_server(responder) as server:
        policy = EgressPolicy(allowlist=EgressAllowlist.parse(server.authority))
        async with EgressClient(replace(policy, **limits)) as client:  # type: ignore[arg-type]
            return await client.get(server.url)


def send_endlessly(head: bytes, piece: bytes) -> Responder:
    async def responder(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)  # drain returns at once while there is room, and the client must read

    return responder


def stall_after(data: bytes) -> Responder:
    async def responder(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await writer.wait_closed()

    return responder


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello\r\n",
        b"<html>HTTP 0.9</html>\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 100,
        b"HTTP/1.1 banana\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        OK + b"Content-Length: x\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 999999999999999999999\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        OK + b"Content-Length: 100\r\n\r\nshort",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        OK + b"Transfer-Encoding: gzip, chunked, x\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"Content-Encoding: br\r\n\r\nxx",
        OK + b"Content-Encoding: gzip\r\n\r\nnot gzip",
        OK + b"Content-Encoding: gzip\r\n\r\n" + gzip_data(b"x" * 1000)[:-4],
        OK + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(b"x" * 1000)[:-6],
        OK + b"Content-Encoding: gzip, gzip, gzip\r\n\r\nx",
        OK + b"Content-Encoding: br\r\n\r\nnot brotli, whatever it says",
        OK + b"Content-Encoding: br\r\n\r\n" + brotli.compress(bytes(range(256)) * 9)[:-4],
        OK + b"Content-Encoding: zstd\r\n\r\nnot zstd",
        OK + b"Content-Encoding: zstd\r\n\r\n" + zstd.compress(bytes(range(256)) * 9)[:-4],
        OK + b"Content-Encoding: zstd\r\n\r\n" + LARGE_WINDOW,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
    ],
)
async def test_invalid_responses_are_errors(data: bytes) -> None:
    with pytest.raises(EgressResponseError) as caught:
        await fetch(send_raw(data))
    assert (caught.value.reason, caught.value.retryable) == ("response", True)


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (OK, b"X-Header: " + b"a" * 1000 + b"\r\n"),
        (OK + b"X-Long: ", b"a" * 10_000),
        (b"", b"a" * 10_000),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 10_000),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: a\r\n" * 1000),
    ],
)
async def test_header_floods_are_refused(head: bytes, piece: bytes) -> None:
    with pytest.raises(EgressResponseError):
        await fetch(send_endlessly(head, piece))


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (OK + b"\r\n", b"x" * 10_000),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n" * 100),
        (OK + b"Content-Length: 9999999999999999999\r\n\r\n", b"x" * 1000),
        (OK + b"Content-Length: 50001\r\n\r\n", b"x" * 1000),
    ],
)
async def test_endless_and_large_bodies_are_refused(head: bytes, piece: bytes) -> None:
    with pytest.raises(EgressTooLargeError, match="larger than 50000 bytes"):
        await fetch(send_endlessly(head, piece), max_response_bytes=50_000)


@pytest.mark.parametrize(
    ("encoding", "build_body"),
    [
        ("gzip", lambda: gzip_data(b"\x00" * 20_000_000)),
        ("deflate", lambda: zlib.compress(b"\x00" * 20_000_000)),
        ("gzip, gzip", lambda: gzip_data(gzip_data(b"\x00" * 200_000_000))),
        ("gzip", lambda: gzip_data(b"\x00" * 2_000_000) * 10),
        ("br", lambda: brotli.compress(b"\x00" * 20_000_000, quality=1)),
        ("zstd", lambda: zstd.compress(b"\x00" * 20_000_000)),
        ("zstd", lambda: zstd.compress(b"\x00" * 2_000_000) * 10),
        ("br, gzip", lambda: gzip_data(brotli.compress(b"\x00" * 50_000_000, quality=1))),
    ],
    ids=["gzip", "deflate", "twice", "members", "brotli", "zstd", "frames", "mixed"],
)
async def test_decompression_bombs_are_refused(encoding: str, build_body: Callable[[], bytes]) -> None:
    body = build_body()
    with pytest.raises(EgressTooLargeError, match="expands to more than 200 times"):
        await fetch(respond(body, Content_Encoding=encoding))
    with pytest.raises(EgressTooLargeError, match="larger than 1000000 bytes"):
        await fetch(respond(body, Content_Encoding=encoding), max_response_bytes=1_000_000)


RAW_DEFLATE = zlib.compressobj(wbits=-15)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip_data(b"hello " * 1000)),
        ("x-gzip", gzip_data(b"hello " * 500) + gzip_data(b"hello " * 500)),
        ("gzip", gzip_data(b"hello " * 1000) + b"\x00" * 512),
        ("deflate", zlib.compress(b"hello " * 1000)),
        ("deflate", RAW_DEFLATE.compress(b"hello " * 1000) + RAW_DEFLATE.flush()),
        ("GZIP, deflate", zlib.compress(gzip_data(b"hello " * 1000))),
        ("br", brotli.compress(b"hello " * 1000)),
        ("zstd", zstd.compress(b"hello " * 1000)),
        ("zstd", zstd.compress(b"hello " * 500) + zstd.compress(b"hello " * 500)),
        ("br, zstd", zstd.compress(brotli.compress(b"hello " * 1000))),
        ("identity", b"hello " * 1000),
    ],
)
async def test_compressed_bodies_are_decompressed(encoding: str, body: bytes) -> None:
    assert (await fetch(respond(body, Content_Encoding=encoding))).body == b"hello " * 1000


async def test_an_empty_body_with_an_encoding_is_empty() -> None:
    assert (await fetch(respond(b"", Content_Encoding="gzip"))).body == b""


@pytest.mark.parametrize("data", [b"", OK, OK + b"Content-Length: 10\r\n\r\n", OK + b"\r\nabc"])
async def test_servers_that_stall_time_out(data: bytes) -> None:
    for limit in ("idle_timeout", "total_timeout"):
        with pytest.raises(EgressTimeoutError) as caught:
            await fetch(stall_after(data), **{limit: timedelta(milliseconds=100)})
        assert caught.value.retryable


@pytest.mark.parametrize("head", [b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"\r\n"])
async def test_servers_that_send_a_byte_now_and_then_time_out(head: bytes) -> None:
    """Each byte comes within the idle time, so only the limit for the whole request ends it."""

    async def drip(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(head if head.startswith(b"HTTP/1.1 100") else b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def responder(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await drip(request, writer)

    with pytest.raises(EgressTimeoutError):
        await fetch(responder, total_timeout=timedelta(milliseconds=300))


async def test_closed_ports_are_connection_errors() -> None:
    async with run_web_server(respond()) as server:
        pass
    async with EgressClient(EgressPolicy(allowlist=EgressAllowlist.parse("127.0.0.1"))) as client:
        with pytest.raises(EgressConnectError) as caught:
            await client.get(server.url)
    assert caught.value.retryable
    assert "127.0.0.1" not in str(caught.value)


async def test_the_client_works_after_failed_requests() -> None:
    async with run_web_server(send_raw(b"garbage\r\n\r\n")) as bad, run_web_server(respond(b"ok")) as good:
        policy = EgressPolicy(
            allowlist=EgressAllowlist.parse(f"{bad.authority},{good.authority}"), max_connections_per_host=1
        )
        async with EgressClient(policy) as client:
            for _ in range(3):
                with pytest.raises(EgressError):
                    await client.get(bad.url)
                assert (await client.get(good.url)).body == b"ok"
