"""Preview files without trusting them.

The first bytes of a file decide how it is shown, not the content type that its creator declared. The response
carries the detected type, so that no browser takes the file for a web page. Images, audio and PDF go to the
browser's own viewers. Anything that decodes as text is shown as text, including HTML and SVG. Other files
have no preview.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.model import Artifact
from holdfast.storage import ObjectStore

PreviewKind = Literal["image", "audio", "pdf", "text"]
MAX_PREVIEW_BYTES = 50_000_000
MAX_TEXT_PREVIEW_BYTES = 64 * 1024
_MAX_SIGNATURE_BYTES = 32
_FILE_SIGNATURES: tuple[tuple[bytes, PreviewKind, str], ...] = (
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
)


@dataclass(frozen=True)
class FilePreview:
    """The kind and media type of a file preview, and for text files the text."""

    kind: PreviewKind
    media_type: str
    text: str = ""
    truncated: bool = False


async def load_file_preview(store: ObjectStore, file: Artifact) -> FilePreview | None:
    """Read the first bytes of a file and return its preview, or None if the file has no preview."""
    start = await _read_first_bytes(store, file, _MAX_SIGNATURE_BYTES)
    preview = detect_preview_type(start)
    if preview is not None:
        return preview if file.size <= MAX_PREVIEW_BYTES else None
    truncated = file.size > MAX_TEXT_PREVIEW_BYTES
    text = decode_preview_text(
        await _read_first_bytes(store, file, MAX_TEXT_PREVIEW_BYTES), truncated=truncated
    )
    return None if text is None else FilePreview("text", "text/plain", text, truncated)


async def _read_first_bytes(store: ObjectStore, file: Artifact, max_bytes: int) -> bytes:
    end = min(file.size, max_bytes)
    if not end:
        return b""
    content = b""
    async with store.open(file.key, start=0, end=end) as chunks:
        async for chunk in chunks:
            content += chunk
    return content


def detect_preview_type(start: bytes) -> FilePreview | None:
    """Detect an image, audio or PDF file by its first bytes. Return None for other files."""
    for signature, kind, media_type in _FILE_SIGNATURES:
        if start.startswith(signature):
            return FilePreview(kind, media_type)
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return FilePreview("image", "image/webp")
    if start[:4] == b"RIFF" and start[8:12] == b"WAVE":
        return FilePreview("audio", "audio/wav")
    if start[4:8] == b"ftyp" and start[8:12] == b"avif":
        return FilePreview("image", "image/avif")
    if start[4:8] == b"ftyp" and start[8:12] == b"M4A ":
        return FilePreview("audio", "audio/mp4")
    return None


def decode_preview_text(content: bytes, *, truncated: bool) -> str | None:
    """Decode UTF-8 text. Return None if the bytes are not text.

    Truncated content may end within a character of up to four bytes, which is then dropped.
    """
    for dropped_bytes in range(4 if truncated else 1):
        try:
            text = content[: len(content) - dropped_bytes].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return None if any(ord(c) < 32 and c not in "\t\n\r\f\x1b" for c in text) else text
    return None
