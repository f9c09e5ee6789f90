"""The media of the demo: a film of a local site is downloaded, gets a poster, and is transcribed.

The film is made here: pictures by ffmpeg, and sentences that the local voice speaks. The site sends it
slowly, so that the progress can be seen. Its address is private, so the demo allows it with an entry of
`egress_allow`, as a deployment does for its own hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.client import Client
from holdfast.systems import media
from holdfast.systems.media import share_queries as queries
from holdfast.systems.media.ffmpeg import find_ffmpeg
from holdfast.systems.media.share_urls import parse_share_url
from holdfast.systems.providers.local_speech import synthesize_audio_samples

FILM_PATH: Final = "/harbour-film.mp4"
FILM_TEXT: Final = (
    "Ships lie in the harbour and wait for the wind. The light turns once in twelve seconds. "
    "A rope holds as well as its knot."
)
FILM_SIZE: Final = "640x360"
SEND_DURATION_S: Final = 3.0
SENT_PARTS: Final = 30
STATUS_CHECK_INTERVAL_S: Final = 0.2
MEGABYTE: Final = 1_048_576
COPIED_KINDS: Final = ("poster", "transcript")


def find_missing_part() -> str | None:
    """Return what this machine lacks for media, in a sentence, or None if it has everything."""
    try:
        find_ffmpeg()
        synthesize_audio_samples("Hello.", "en")
    except Exception as error:  # the packages of the extras are not installed, or cannot be loaded
        return str(error)
    return None


def make_film() -> bytes:
    """Make a film of a few seconds with a spoken text."""
    samples, rate = synthesize_audio_samples(FILM_TEXT, "en")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        sound, film = Path(folder, "sound.raw"), Path(folder, "film.mp4")
        sound.write_bytes(samples)
        command = [
            str(find_ffmpeg()), "-v", "error", "-f", "lavfi", "-i", f"mandelbrot=s={FILM_SIZE}:rate=12",
            "-f", "s16le", "-ar", str(rate), "-ac", "1", "-i", str(sound), "-shortest",
            "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac",
            "-movflags", "faststart", str(film),
        ]  # fmt: skip
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return film.read_bytes()


@asynccontextmanager
async def serve_film(listener: socket.socket) -> AsyncGenerator[None]:
    """Serve the film on a socket until the end of the block, whole or from a position on."""
    film = await asyncio.to_thread(make_film)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            position = re.search(r"(?im)^range: bytes=(\d+)-", request)
            await send_film(writer, film, int(position[1]) if position else 0)
        writer.close()

    server = await asyncio.start_server(answer, sock=listener)
    try:
        yield
    finally:
        server.close()


async def send_film(writer: asyncio.StreamWriter, film: bytes, start: int) -> None:
    """Send the film from a position on, in pieces."""
    status = "206 Partial Content" if start else "200 OK"
    content_range = f"Content-Range: bytes {start}-{len(film) - 1}/{len(film)}\r\n" if start else ""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: video/mp4\r\nAccept-Ranges: bytes\r\n{content_range}"
        f"Content-Length: {len(film) - start}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    part = len(film) // SENT_PARTS + 1
    for position in range(start, len(film), part):
        writer.write(film[position : position + part])
        await writer.drain()
        await asyncio.sleep(SEND_DURATION_S / SENT_PARTS)


async def install_media(client: Client) -> None:
    """Install the tables, so that the worker finds them when it starts."""
    async with client.connection() as connection:
        await media.install(connection, client.settings.systems_schema)


async def add_demo_share(client: Client, owner: str, listener: socket.socket) -> queries.Row:
    """Delete the shares of an earlier run, and share the link to the film."""
    schema = client.settings.systems_schema
    url = parse_share_url(f"http://127.0.0.1:{listener.getsockname()[1]}{FILM_PATH}", client.settings)
    async with client.transaction() as connection:
        rows = await queries.list_shares(connection, schema, owner, status=None, before=None, limit=200)
        for row in rows:
            if row["url"].endswith(FILM_PATH):
                await queries.delete_share(connection, schema, row["id"], owner)
        share_id = await queries.add_share(connection, schema, owner, url, premium=False, options={})
        share = await queries.find_share(connection, schema, share_id)
        assert share is not None  # noqa: S101  (inserted above)
        return share


async def wait_for_share(
    client: Client, share: queries.Row, on_progress: Callable[[float, str], None]
) -> queries.Row:
    """Wait until nothing of the share changes any more. Report the percentage of the step and its name."""
    while not queries.is_share_finished(share):
        async with client.connection() as connection:
            row = await queries.find_share(connection, client.settings.systems_schema, share["id"])
        share = row or share
        on_progress(*_describe_progress(share))
        await asyncio.sleep(STATUS_CHECK_INTERVAL_S)
    return share


def _describe_progress(share: queries.Row) -> tuple[float, str]:
    if share["download_status"] == "completed":
        return 100.0, "poster and sound" if share["processing_status"] != "completed" else "transcript"
    done, total = share["bytes"] or 0, share["total"] or 0
    if not total:
        return 0.0, share["download_status"]
    return 100 * done / total, f"{done / MEGABYTE:.1f} of {total / MEGABYTE:.1f} MB"


def describe_result(share: queries.Row) -> tuple[bool, str]:
    """Return whether everything succeeded, and a line about the share."""
    errors = [share[f"{name}_error"] for name in ("download", "processing", "transcript")]
    statuses = [share[f"{name}_status"] for name in ("download", "processing", "transcript")]
    if any(status != "completed" for status in statuses):
        return False, "; ".join(error for error in errors if error) or f"ended as {', '.join(statuses)}"
    metadata = share["platform_data"]["downloadMetadata"]
    size, duration = metadata["size"] / MEGABYTE, metadata["duration"]
    return True, f"downloaded {size:.1f} MB, {duration:.0f} s of film, with poster and transcript"


async def copy_share_files(client: Client, share: queries.Row, folder: Path) -> list[Path]:
    """Copy the poster and the transcript to a folder, and return their paths."""
    copies: list[Path] = []
    for file in await client.files.list(job=share["job_id"]):
        if file.kind in COPIED_KINDS:
            copies.append(folder / f"harbour-film-{file.name}")
            copies[-1].write_bytes(await client.files.read(file))
    return sorted(copies)
