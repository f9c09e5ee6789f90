"""An OpenAI-compatible server on a real socket, whose responses a test can replace."""

from __future__ import annotations

import asyncio
import io
import json
import math
import struct
import wave
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from holdfast import Secret
from holdfast.egress import EgressAllowlist, EgressPolicy
from holdfast.systems.providers import ProviderConfig, ProviderKind

# Providers pass the egress guard, so a server on loopback needs an entry.
LOOPBACK_POLICY = EgressPolicy(allowlist=EgressAllowlist.parse("127.0.0.1"))
ProviderResponse = tuple[int, dict[str, str], bytes]


def make_config(
    server: ProviderServer, kind: ProviderKind, *, timeout_s: float = 30, max_tokens: int | None = None
) -> ProviderConfig:
    return ProviderConfig(
        kind=kind,
        url=server.url,
        model="m",
        api_key=Secret("sk-test"),
        timeout=timedelta(seconds=timeout_s),
        max_tokens=max_tokens,
    )


def make_chat_response(text: str, tokens: tuple[int, int] = (120, 45)) -> ProviderResponse:
    body = {
        "model": "test-model",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }
    return 200, {"content-type": "application/json"}, json.dumps(body).encode()


def make_embeddings_response(texts: list[str]) -> ProviderResponse:
    rows = [
        {"object": "embedding", "index": number, "embedding": [float(len(text)), 0.5, -1.0]}
        for number, text in enumerate(texts)
    ]
    body = {"object": "list", "model": "test-vectors", "data": rows[::-1],
            "usage": {"prompt_tokens": 7 * len(texts), "total_tokens": 7 * len(texts)}}  # fmt: skip
    return 200, {"content-type": "application/json"}, json.dumps(body).encode()


def make_wav(seconds: float, sample_rate: int = 24000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(sample_rate)
        count = int(seconds * sample_rate)
        recording.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(n / 12))) for n in range(count)))
    return file.getvalue()


def respond_by_default(path: str, body: Any) -> ProviderResponse:
    if path.endswith("/chat/completions"):
        return make_chat_response(f"A chapter about {body['messages'][-1]['content']}"[:200])
    if path.endswith("/embeddings"):
        return make_embeddings_response(body["input"])
    if "/video?" in path:
        answer = {"success": True, "title": "A video", "transcript": [{"text": "Words", "startMs": "0"}]}
        return 200, {"content-type": "application/json"}, json.dumps(answer).encode()
    return 200, {"content-type": "audio/wav"}, make_wav(len(body["input"]) / 150)


@dataclass
class ProviderServer:
    """`respond` maps a request to a response; None keeps the connection open without a response.

    A response with the header `x-cut: 1` ends after its content, whatever length it declares.
    `requests` contains the path, headers and body of every request.
    """

    url: str = ""
    respond: Callable[[str, Any], ProviderResponse | None] = respond_by_default
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list[Any])

    connections: set[asyncio.Task[Any]] = field(default_factory=set[Any])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            while await self._serve_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        path = line.decode().split(" ")[1]
        headers: dict[str, str] = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        content_bytes = await reader.readexactly(int(headers.get("content-length", "0")))
        is_json = headers.get("content-type", "") == "application/json"
        body = json.loads(content_bytes) if is_json else content_bytes
        self.requests.append((path, headers, body))
        response = self.respond(path, body)
        if response is None:
            await reader.read()  # until the client disconnects
            return False
        status, response_headers, content = response
        head = [f"HTTP/1.1 {status} X", *(f"{n}: {v}" for n, v in response_headers.items())]
        if "content-length" not in response_headers:
            head.append(f"content-length: {len(content)}")
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await writer.drain()
        if "x-cut" in response_headers:
            return False
        if "content-length" in response_headers:
            await reader.read()  # the client waits for the rest
        return "content-length" not in response_headers


@asynccontextmanager
async def run_provider_server() -> AsyncGenerator[ProviderServer]:
    provider = ProviderServer()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield provider
    finally:
        server.close()
        for task in provider.connections:
            task.cancel()
        await asyncio.gather(*provider.connections, return_exceptions=True)
