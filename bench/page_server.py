"""The website of the benchmark of bookmarks, in a process of its own: `python -m bench.page_server PORT`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.system_processes import choose_port

PARAGRAPH = "The ships lie in the harbour and wait for the wind. " * 12
PAGE = f"""<!doctype html><html><head><title>Page %s</title><meta name="description" content="A page">
<meta property="og:image" content="/og.png"><link rel="icon" href="/icon.png" sizes="64x64">
<style>body {{ font: 18px serif; max-width: 50em }}</style></head>
<body><article><h1>Page %s</h1>{f"<p>{PARAGRAPH}</p>" * 12}<img src="/og.png"></article></body></html>"""


def make_image(width: int, height: int) -> bytes:
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415

    image = Image.new("RGB", (width, height), (20, 60, 200))
    for row in range(1, 4):
        text, font = f"HARBOUR {row}", ImageFont.load_default(height // 8)
        ImageDraw.Draw(image).text((width // 10, row * height // 5), text, fill="white", font=font)
    output = io.BytesIO()
    image.save(output, "PNG")
    return output.getvalue()


async def serve_pages(port: int) -> None:
    """Serve pages with an image and an icon on loopback."""
    images = {"/og.png": make_image(1200, 630), "/icon.png": make_image(64, 64)}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            body = images.get(path) or (PAGE % (path, path)).encode()
            kind = "image/png" if path in images else "text/html; charset=utf-8"
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        await server.serve_forever()


@asynccontextmanager
async def run_page_server() -> AsyncIterator[str]:
    """Run the website until the end of the block, and yield its address."""
    port = choose_port()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.page_server", str(port))
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(serve_pages(int(sys.argv[1])))
