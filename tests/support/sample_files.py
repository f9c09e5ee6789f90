"""Small files of every type that the dashboard previews, and some whose declared type is wrong."""

from __future__ import annotations

import math
import struct
import zlib


def create_png(width: int = 640, height: int = 360) -> bytes:
    """Create an image of waves, so that a person who looks at a page sees whether it is shown."""
    rows = b"".join(
        b"\0" + b"".join(_compute_pixel(x, y, height) for x in range(width)) for y in range(height)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_encode_png_chunk(kind, body) for kind, body in parts)


def _compute_pixel(x: int, y: int, height: int) -> bytes:
    wave = math.sin(x / 48) * 24 + height / 2
    depth = (y - wave) / height
    return (
        bytes((24, 74, 140))
        if depth > 0.12
        else bytes((70, 130, 200))
        if depth > 0
        else bytes((236, 242, 250))
    )


def _encode_png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def create_wav(seconds: float = 1.0, rate: int = 8000) -> bytes:
    samples = b"".join(
        struct.pack("<h", int(9000 * math.sin(n * 2 * math.pi * 440 / rate)))
        for n in range(int(seconds * rate))
    )
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    data = head + struct.pack("<4sI", b"data", len(samples)) + samples
    return struct.pack("<4sI4s", b"RIFF", 4 + len(data), b"WAVE") + data


def create_pdf() -> bytes:
    """Create a PDF of one page with one sentence."""
    text = b"BT /F1 24 Tf 60 700 Td (The annual report) Tj ET"
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources "
        b"<< /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(text), text),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    document, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        offsets.append(len(document))
        document += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return document + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (len(bodies) + 1, table, len(bodies) + 1, len(document))
    )


HTML_WITH_SCRIPT = (
    b"<!doctype html><title>x</title><script>document.title = 'hijacked'; fetch('/stolen')</script>"
)
# name: (declared content type, content)
SAMPLE_FILES: dict[str, tuple[str, bytes]] = {
    "shot.png": ("image/png", create_png()),
    "ocr.json": ("application/json", b'{\n  "pages": 50,\n  "words": 18211,\n  "language": "en"\n}\n'),
    "page.html": ("text/html", HTML_WITH_SCRIPT),
    "report.pdf": ("application/pdf", create_pdf()),
    "voice.wav": ("audio/wav", create_wav()),
    "drawing.svg": (
        "image/svg+xml",
        b'<svg xmlns="http://www.w3.org/2000/svg" onload="fetch(1)"><script>fetch("/stolen")</script></svg>',
    ),
    "mislabelled.png": ("image/png", HTML_WITH_SCRIPT),
    "archive.zip": ("application/zip", b"PK\x03\x04" + bytes(40)),
}
