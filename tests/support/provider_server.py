"""A server that speaks the OpenAI-compatible protocol, and misbehaves as it is told, over real sockets."""

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
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


def chat(text: str) -> Reply:
    body = {"model": "test-model", "choices": [{"message": {"role": "assistant", "content": text}}]}
    return 200, {"content-type": "application/json"}, json.dumps(body).encode()


def wav(seconds: float, rate: int = 24000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        count = int(seconds * rate)
        sound.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(n / 12))) for n in range(count)))
    return file.getvalue()


def default(path: str, body: Any) -> Reply:
    if path.endswith("/chat/completions"):
        return chat("A chapter about " + body["messages"][-1]["content"][:200])
    return 200, {"content-type": "audio/wav"}, wav(len(body["input"]) / 150)


@dataclass
class Provider:
    """`answers` maps a request to a reply; None keeps the connection open and says nothing."""

    url: str = ""
    answers: Callable[[str, Any], Reply | None] = default
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list[Any])

    serving: set[asyncio.Task[Any]] = field(default_factory=set[Any])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        path = line.decode().split(" ")[1]
        headers: dict[str, str] = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"null")
        self.asked.append((path, headers, body))
        reply = self.answers(path, body)
        if reply is None:
            await reader.read()  # until the client gives up
            return False
        status, extra, content = reply
        head = [f"HTTP/1.1 {status} X", *(f"{n}: {v}" for n, v in extra.items())]
        if "content-length" not in extra:
            head.append(f"content-length: {len(content)}")
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await writer.drain()
        return "content-length" not in extra


@asynccontextmanager
async def provider() -> AsyncGenerator[Provider]:
    made = Provider()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
        for task in made.serving:
            task.cancel()
        await asyncio.gather(*made.serving, return_exceptions=True)
