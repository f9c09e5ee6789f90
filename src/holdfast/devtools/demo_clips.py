"""The clips of the demo: two videos of a local site, one with captions and one without, become searchable.

The page with captions is read by yt-dlp. The other video is a file whose sound is transcribed on this
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from holdfast.client import Client
from holdfast.devtools import demo_media
from holdfast.systems import clips
from holdfast.systems.clips import clip_queries as queries
from holdfast.systems.clips import passage_queries
from holdfast.systems.clips.passages import normalize_vector
from holdfast.systems.providers import ProviderRegistry, UsageAccount

CAPTIONED_PATH: Final = "/harbour-talk.html"
SPOKEN_PATH: Final = "/harbour-sound.mp4"
QUERY: Final = "how strong is a knot"
STATUS_CHECK_INTERVAL_S: Final = 0.2
CAPTIONS: Final = """WEBVTT

00:00:00.000 --> 00:00:03.000
Ships lie in the harbour and wait for the wind.

00:00:03.000 --> 00:00:05.000
The light turns once in twelve seconds.

00:00:05.000 --> 00:00:08.000
A rope holds as well as its knot.
"""
PAGE: Final = """<!doctype html><title>Harbour talk</title>
<meta property="og:title" content="What holds a ship">
<video src="/film.mp4"><track kind="captions" src="/talk.vtt" srclang="en"></video>"""


def find_missing_part() -> str | None:
    """Return what this machine lacks for clips, in a sentence, or None if it has everything."""
    if importlib.util.find_spec("wordllama") is None:
        return "Local embeddings are not installed: pip install 'holdfast[clips]'."
    return demo_media.find_missing_part()


@asynccontextmanager
async def serve_videos(listener: socket.socket) -> AsyncGenerator[None]:
    """Serve the page, its captions and the films on a socket until the end of the block."""
    film = await asyncio.to_thread(demo_media.make_film)
    pages: dict[str, tuple[str, bytes]] = {
        CAPTIONED_PATH: ("text/html; charset=utf-8", PAGE.encode()),
        "/talk.vtt": ("text/vtt", CAPTIONS.encode()),
        "/film.mp4": ("video/mp4", film),
        SPOKEN_PATH: ("video/mp4", film),
    }

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, IndexError):
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path = request.split(" ")[:2]
            content_type, body = pages.get(path.partition("?")[0], ("text/plain", b""))
            status = "200 OK" if body else "404 Not Found"
            head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, sock=listener)
    try:
        yield
    finally:
        server.close()


async def install_clips(client: Client) -> None:
    """Install the tables, so that the worker finds them when it starts."""
    async with client.connection() as connection:
        await clips.install(connection, client.settings.systems_schema)


async def add_demo_clips(client: Client, owner: str, listener: socket.socket) -> list[str]:
    """Delete the clips of an earlier run, and insert the two videos. Return their ids."""
    schema = client.settings.systems_schema
    site = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with client.transaction() as connection:
        for row in await queries.list_clips(connection, schema, owner, queries.ClipFilter(limit=200)):
            if row["video_url"].endswith((CAPTIONED_PATH, SPOKEN_PATH)):
                await queries.delete_clip(connection, schema, row["id"], owner)
        clip_ids: list[str] = []
        for url in (site + CAPTIONED_PATH, site + SPOKEN_PATH):
            key = hashlib.sha256(url.encode()).digest()
            clip_ids.append(await queries.insert_clip(connection, schema, owner, url, key) or "")
        return clip_ids


async def wait_for_clips(
    client: Client, owner: str, clip_ids: list[str], on_progress: Callable[[float, str], None]
) -> list[queries.Row]:
    """Wait until the clips are done or have failed. Report the average percentage and a phase."""
    while True:
        async with client.connection() as connection:
            schema = client.settings.systems_schema
            rows = await queries.list_clips_by_id(connection, schema, owner, clip_ids)
        running = [row for row in rows if row["processing_status"] not in ("done", "failed")]
        percent = sum(row["percent"] for row in rows) / max(1, len(rows))
        note = running[0]["phase"] or running[0]["processing_status"] if running else "searchable"
        on_progress(percent, note)
        if not running:
            return rows
        await asyncio.sleep(STATUS_CHECK_INTERVAL_S)


async def search_demo_clips(client: Client, owner: str) -> list[str]:
    """Search the clips by meaning, and return a line for each hit."""
    providers = ProviderRegistry.for_client(client)
    try:
        answer = await providers.embeddings.embed_texts([QUERY], account=UsageAccount(owner=owner))
    finally:
        await providers.close()
    vector = normalize_vector(answer.vectors[0])
    async with client.connection() as connection:
        rows = await passage_queries.search_clips(
            connection, client.settings.systems_schema, owner, QUERY, vector, answer.model, 2
        )
    return [f"search {QUERY!r}: at {row['start_s']:.0f} s, {row['body'][:80]}" for row in rows]
