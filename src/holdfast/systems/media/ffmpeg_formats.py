"""Find the format of a media file from its first bytes.

ffmpeg would guess the format, and its guesses include playlists and scripts that make it open other files
(local file disclosure). It gets exactly the format that is found here, so a playlist is never read.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.systems.media.contracts import MediaError

HEAD_BYTES = 4096
TRANSPORT_PACKET_BYTES = (188, 192)
MOV_BOXES = {b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip", b"pnot"}
# The first bytes of a file, and the name of the format in ffmpeg.
SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x1a\x45\xdf\xa3", "matroska"),
    (b"FLV\x01", "flv"),
    (b"OggS", "ogg"),
    (b"fLaC", "flac"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    (b"#!AMR", "amr"),
    (b"caff", "caf"),
    (b"\x00\x00\x01\xba", "mpeg"),
    (b"\x00\x00\x01\xb3", "mpegvideo"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"\x89PNG\r\n\x1a\n", "png_pipe"),
    (b"\xff\xd8\xff", "jpeg_pipe"),
)
RIFF_TYPES = {b"AVI ": "avi", b"WAVE": "wav", b"WEBP": "webp_pipe"}
FORM_TYPES = {b"AIFF": "aiff", b"AIFC": "aiff"}
IMAGE_FORMATS = {"png_pipe", "jpeg_pipe", "webp_pipe"}
# What is refused, with a reason that is clearer than "not a media file".
REFUSED_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "an archive"),
    (b"PK\x05\x06", "an archive"),
    (b"Rar!", "an archive"),
    (b"7z\xbc\xaf", "an archive"),
    (b"\x1f\x8b", "an archive"),
    (b"BZh", "an archive"),
    (b"\xfd7zXZ\x00", "an archive"),
    (b"\x28\xb5\x2f\xfd", "an archive"),
    (b"%PDF", "a document"),
    (b"#EXTM3U", "a playlist"),
    (b"ffconcat", "a playlist"),
    (b"[playlist]", "a playlist"),
    (b"<", "a page or a manifest"),
    (b"{", "text"),
)


def detect_format(path: Path) -> str:
    """Return the name of ffmpeg's format. Raise MediaError if the file is no media file of a known format."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        if head[:3] == b"ID3" and len(head) >= 10:
            # A tag of any size comes before MP3, AAC or FLAC.
            size = sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
            file.seek(10 + size)
            head = file.read(HEAD_BYTES) or b"\xff\xfb"
    return find_format(head)


def find_format(head: bytes) -> str:
    """Return the name of ffmpeg's format for the first bytes of a file."""
    if not head:
        raise MediaError("unsupported", "The file is empty.")
    if head[4:8] in MOV_BOXES:
        return "mov"
    for signature, file_format in SIGNATURES:
        if head.startswith(signature):
            return file_format
    types = RIFF_TYPES if head[:4] == b"RIFF" else FORM_TYPES if head[:4] == b"FORM" else {}
    name = types.get(head[8:12]) or _find_stream_format(head)
    if name is None:
        raise MediaError("unsupported", _describe_refusal(head))
    return name


def _find_stream_format(head: bytes) -> str | None:
    """Return the format of a file that is a sequence of packets or frames without a header."""
    for size in TRANSPORT_PACKET_BYTES:
        offset = size - 188
        if len(head) > offset + 2 * size and head[offset::size][:3] == b"\x47\x47\x47":
            return "mpegts"
    if len(head) < 2 or head[0] != 0xFF:
        return None
    if head[1] & 0xF6 == 0xF0:
        return "aac"
    return "mp3" if head[1] & 0xE0 == 0xE0 and head[1] & 0x06 else None


def _describe_refusal(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for signature, noun in REFUSED_SIGNATURES:
        if head.startswith(signature) or text.startswith(signature):
            return f"The file is {noun}, not a video, sound or image."
    if head[257:262] == b"ustar":
        return "The file is an archive, not a video, sound or image."
    return "The file is not a video, sound or image in a known format."
