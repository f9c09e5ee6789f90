"""Recognise media by its first bytes and its content type, and choose a safe name for the stored file."""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

MediaKind = Literal["video", "audio", "image"]
SourceKind = Literal["media", "page", "unsupported"]

MAX_NAME_CHARS: Final = 120
SNIFFED_BYTES: Final = 4096
# Pages and playlists, which yt-dlp reads. It decides whether there is media in them.
PAGE_TYPES: Final = frozenset(
    {
        *("text/html", "application/xhtml+xml", "application/vnd.apple.mpegurl", "application/x-mpegurl"),
        *("audio/mpegurl", "audio/x-mpegurl", "application/dash+xml", "application/json", "text/plain"),
        *("application/xml", "text/xml"),
    }
)
EXTENSION_BY_TYPE: Final = {
    "video/mp4": "mp4",
    "video/quicktime": "mov",
    "video/webm": "webm",
    "video/x-matroska": "mkv",
    "video/x-msvideo": "avi",
    "video/x-flv": "flv",
    "video/mp2t": "ts",
    "video/mpeg": "mpg",
    "video/x-ms-asf": "wmv",
    "audio/mp4": "m4a",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/aac": "aac",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/avif": "avif",
}
_MAGIC_NUMBERS: Final = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF8", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"FLV\x01", "video/x-flv"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "video/x-ms-asf"),
    (b"\x00\x00\x01\xba", "video/mpeg"),
    (b"\x00\x00\x01\xb3", "video/mpeg"),
)
_RIFF_TYPES: Final = {b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo", b"WEBP": "image/webp"}
_AUDIO_BRANDS: Final = (b"M4A ", b"M4B ", b"M4P ")
_MPEG_TS_PACKET_BYTES: Final = 188


def sniff_content_type(head: bytes) -> str | None:
    """Return the content type of media by its first bytes, or None if they are no media that we know."""
    for magic, content_type in _MAGIC_NUMBERS:
        if head.startswith(magic):
            return content_type
    if head[:4] == b"RIFF":
        return _RIFF_TYPES.get(head[8:12])
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
        return _get_iso_media_type(head)
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    if head[:1] == b"\x47" and head[_MPEG_TS_PACKET_BYTES : _MPEG_TS_PACKET_BYTES + 1] == b"\x47":
        return "video/mp2t"
    return _sniff_audio_frame(head)


def _get_iso_media_type(head: bytes) -> str:
    brand = head[8:12] if head[4:8] == b"ftyp" else b""
    if brand in _AUDIO_BRANDS:
        return "audio/mp4"
    if brand in (b"avif", b"avis"):
        return "image/avif"
    return "video/quicktime" if brand in (b"qt  ", b"") else "video/mp4"


def _sniff_audio_frame(head: bytes) -> str | None:
    if len(head) < 2 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    layer = head[1] & 0x06
    return "audio/aac" if layer == 0 and head[1] & 0xF0 == 0xF0 else "audio/mpeg"


def classify_source(declared_type: str, head: bytes) -> SourceKind:
    """Return whether a response is a media file, a page or playlist for yt-dlp, or neither.

    The first bytes decide, because servers declare all kinds of types, and archives under the name of media.
    """
    if sniff_content_type(head) is not None:
        return "media"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if start.startswith((b"#extm3u", b"<", b"{", b"[")) or declared_type in PAGE_TYPES:
        return "page" if b"\x00" not in head else "unsupported"
    return "unsupported"


def get_media_kind(content_type: str) -> MediaKind:
    """Return the value of the column `media_type`: video, audio or image."""
    family = content_type.partition("/")[0]
    return "audio" if family == "audio" else "image" if family == "image" else "video"


def choose_file_name(source_name: str, content_type: str) -> str:
    """Return a name for the stored file: the readable part of `source_name`, and the right extension.

    The name is shown to users and never used as a path. What a server sends may contain anything.
    """
    stem = re.sub(r"\.[A-Za-z0-9]{1,5}$", "", source_name.strip())
    stem = "".join(c if c.isalnum() or c in " -_.()" else "_" for c in stem if c.isprintable())
    stem = re.sub(r"\.{2,}", ".", re.sub(r"_{2,}", "_", stem)).strip(" ._")[:MAX_NAME_CHARS]
    return f"{stem or 'media'}.{EXTENSION_BY_TYPE.get(content_type, 'bin')}"


def get_source_name(url: str, disposition: str) -> str:
    """Return the name that the server gives a file in `Content-Disposition`, else the end of its path."""
    match = re.search(r"filename\*\s*=\s*[\w-]+'[^']*'([^;]+)", disposition, re.IGNORECASE)
    if match:
        return unquote(match[1].strip())
    match = re.search(r'filename\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;]+))', disposition, re.IGNORECASE)
    if match:
        return (match[1] or match[2] or "").strip()
    return unquote(urlsplit(url).path.rpartition("/")[2])
