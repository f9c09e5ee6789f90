"""What a file looks like, without trusting it.

What is shown is decided by the first bytes of the file and not by what its maker called it, and it is served
with our word for its type, so that no browser takes it for a page. Pictures, sounds and PDF go to the
browser's own viewers; anything that reads as text is shown as text, HTML and SVG too, and nothing else is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.model import Artifact
from holdfast.storage import Store

Kind = Literal["image", "audio", "pdf", "text"]
MOST_BYTES = 50_000_000
TEXT_BYTES = 64 * 1024
_HEAD = 32


@dataclass(frozen=True)
class Preview:
    kind: Kind
    media_type: str
    text: str = ""
    cut: bool = False


async def preview_of(store: Store, file: Artifact) -> Preview | None:
    """None: it is not shown, it can only be fetched."""
    head = await _begin(store, file, _HEAD)
    found = recognised(head)
    if found is not None:
        return found if file.size <= MOST_BYTES else None
    text = readable(await _begin(store, file, TEXT_BYTES), whole=file.size <= TEXT_BYTES)
    return None if text is None else Preview("text", "text/plain", text, file.size > TEXT_BYTES)


async def _begin(store: Store, file: Artifact, most: int) -> bytes:
    end = min(file.size, most)
    if not end:
        return b""
    found = b""
    async with store.open(file.key, start=0, end=end) as pieces:
        async for piece in pieces:
            found += piece
    return found


def recognised(head: bytes) -> Preview | None:
    for start, kind, media_type in (
        (b"\x89PNG\r\n\x1a\n", "image", "image/png"),
        (b"\xff\xd8\xff", "image", "image/jpeg"),
        (b"GIF87a", "image", "image/gif"),
        (b"GIF89a", "image", "image/gif"),
        (b"%PDF-", "pdf", "application/pdf"),
        (b"ID3", "audio", "audio/mpeg"),
        (b"\xff\xfb", "audio", "audio/mpeg"),
        (b"\xff\xf3", "audio", "audio/mpeg"),
        (b"OggS", "audio", "audio/ogg"),
        (b"fLaC", "audio", "audio/flac"),
    ):
        if head.startswith(start):
            return Preview(kind, media_type)  # type: ignore[arg-type]
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return Preview("image", "image/webp")
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return Preview("audio", "audio/wav")
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"M4A "):
        return Preview("image", "image/avif") if head[8:12] == b"avif" else Preview("audio", "audio/mp4")
    return None


def readable(content: bytes, *, whole: bool) -> str | None:
    """The text, if it is one: UTF-8 without control characters, up to a character that was cut at the end."""
    for cut in range(1 if whole else 4):
        try:
            text = content[: len(content) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return None if any(ord(c) < 32 and c not in "\t\n\r\f\x1b" for c in text) else text
    return None
