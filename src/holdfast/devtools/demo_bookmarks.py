"""The bookmarks of the demo: three pages of a local site become bookmarks with their files.

The site is served by the demo itself. Its address is private, so the demo allows it with an entry of
`egress_allow`, as a deployment does for its own hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.client import Client
from holdfast.settings import Settings
from holdfast.systems import bookmarks
from holdfast.systems.bookmarks import queries
from holdfast.systems.bookmarks.additions import BookmarkLimits, add_bookmark
from holdfast.systems.bookmarks.bookmark_urls import parse_bookmark_url
from holdfast.systems.capture.chromium_command import find_chromium
from holdfast.systems.capture.errors import BrowserStartError
from holdfast.systems.capture.libraries import load_library
from holdfast.systems.owned_files import find_visible_files

SITE_PAGES = {
    "/harbour": ("The harbour", "Ships lie in the harbour and wait for the wind."),
    "/ropes": ("Knots and ropes", "A rope holds as well as its knot."),
    "/lighthouse": ("The lighthouse", "Its light turns once in twelve seconds."),
}
PAGE = """<!doctype html><html><head><title>{title}</title><meta name="description" content="{text}">
<meta property="og:image" content="{path}.png"><link rel="icon" href="/icon.png" sizes="64x64">
<style>body {{ font: 22px Georgia, serif; margin: 3em auto; max-width: 34em }} img {{ width: 100% }}</style>
</head><body><h1>{title}</h1><img src="{path}.png" alt=""><p>{paragraphs}</p></body></html>"""
STATUS_CHECK_INTERVAL_S = 0.3
ENDED_STATUSES = ("complete", "failed")
FILE_COLUMNS = ("screenshot", "og_image", "favicon")


def find_missing_part(settings: Settings) -> str | None:
    """Return what this machine lacks for bookmarks, in a sentence, or None if it has everything."""
    try:
        find_chromium(settings.chromium)
        load_library("PIL.Image")
    except BrowserStartError as error:
        return error.message
    except Exception as error:  # the packages of the extra are not installed, or cannot be loaded
        return str(error)
    return None


@asynccontextmanager
async def serve_site(listener: socket.socket) -> AsyncGenerator[None]:
    """Serve the pages and their images on a socket until the end of the block."""
    files = await asyncio.to_thread(_build_site)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, IndexError):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            status, (content_type, body) = ("200 OK", files[path]) if path in files else NOT_FOUND
            head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, sock=listener)
    try:
        yield
    finally:
        server.close()


NOT_FOUND = ("404 Not Found", ("text/plain", b"not found"))


def _build_site() -> dict[str, tuple[str, bytes]]:
    """Build the content type and content of each path."""
    files = {"/icon.png": ("image/png", _draw_picture("", 64, 64))}
    for path, (title, text) in SITE_PAGES.items():
        page = PAGE.format(title=title, text=text, path=path, paragraphs=f"{text} " * 20)
        files[path] = ("text/html; charset=utf-8", page.encode())
        files[f"{path}.png"] = ("image/png", _draw_picture(title, 960, 400))
    return files


def _draw_picture(text: str, width: int, height: int) -> bytes:
    image, draw, font = (load_library(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    picture = image.new("RGB", (width, height), (16, 74, 120))
    draw.Draw(picture).text((width // 12, height // 3), text, fill="white", font=font.load_default(72))
    output = io.BytesIO()
    picture.save(output, "PNG")
    return output.getvalue()


async def install_bookmarks(client: Client) -> None:
    """Install the tables, so that the worker finds them when it starts."""
    async with client.connection() as connection:
        await bookmarks.install(connection, client.settings.systems_schema)


async def add_demo_bookmarks(client: Client, owner: str, listener: socket.socket) -> None:
    """Delete the bookmarks of an earlier run, and add those of the site."""
    schema, site = client.settings.systems_schema, f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with client.transaction() as connection:
        for row in await list_demo_bookmarks(client, owner):
            await queries.delete_bookmark(connection, schema, row["id"], owner)
        for path in SITE_PAGES:
            url = parse_bookmark_url(site + path)
            await add_bookmark(connection, schema, owner, url, None, BookmarkLimits())


async def list_demo_bookmarks(client: Client, owner: str) -> list[queries.Row]:
    """Return the rows of the bookmarks of the demo, oldest first."""
    async with client.connection() as connection:
        rows = await queries.list_bookmarks(
            connection, client.settings.systems_schema, owner, queries.BookmarkFilter(limit=200)
        )
    return rows[::-1]


async def wait_for_bookmarks(
    client: Client, owner: str, on_progress: Callable[[int], None]
) -> list[queries.Row]:
    """Wait until all bookmarks have ended, and return their rows. Report how many have ended."""
    while True:
        rows = await list_demo_bookmarks(client, owner)
        ended = sum(row["status"] in ENDED_STATUSES for row in rows)
        on_progress(ended)
        if ended == len(rows):
            return rows
        await asyncio.sleep(STATUS_CHECK_INTERVAL_S)


async def copy_bookmark_files(client: Client, rows: list[queries.Row], folder: Path) -> dict[int, list[Path]]:
    """Copy the files of bookmarks to a folder, and return the paths by the id of the bookmark."""
    copies: dict[int, list[Path]] = {}
    ids: dict[Any, tuple[int, str]] = {
        row[f"{column}_file"]: (row["id"], f"{row['url'].rpartition('/')[2]}-{column}")
        for row in rows
        for column in FILE_COLUMNS
        if row[f"{column}_file"]
    }
    files = await find_visible_files(client, ids)
    for file_id, (bookmark_id, name) in ids.items():
        path = folder / f"{name}{Path(files[file_id].name).suffix}"
        path.write_bytes(await client.files.read(files[file_id]))
        copies.setdefault(bookmark_id, []).append(path)
    return copies
