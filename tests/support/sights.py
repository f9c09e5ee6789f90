"""Small files of every kind that the dashboard can show, and some that only pretend to be such."""

from __future__ import annotations

import math
import struct
import zlib


def png(width: int = 640, height: int = 360) -> bytes:
    """A picture of waves, so that somebody who looks sees whether it is shown."""
    rows = b"".join(b"\0" + b"".join(_colour(x, y, height) for x in range(width)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)


def _colour(x: int, y: int, height: int) -> bytes:
    wave = math.sin(x / 48) * 24 + height / 2
    depth = (y - wave) / height
    return (
        bytes((24, 74, 140))
        if depth > 0.12
        else bytes((70, 130, 200))
        if depth > 0
        else bytes((236, 242, 250))
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def wav(seconds: float = 1.0, rate: int = 8000) -> bytes:
    samples = b"".join(
        struct.pack("<h", int(9000 * math.sin(n * 2 * math.pi * 440 / rate)))
        for n in range(int(seconds * rate))
    )
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    data = head + struct.pack("<4sI", b"data", len(samples)) + samples
    return struct.pack("<4sI4s", b"RIFF", 4 + len(data), b"WAVE") + data


def pdf() -> bytes:
    """One page with one sentence."""
    text = b"BT /F1 24 Tf 60 700 Td (The report of the year) Tj ET"
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources "
        b"<< /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(text), text),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    made, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return made + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (len(bodies) + 1, table, len(bodies) + 1, len(made))
    )


SCRIPT = b"<!doctype html><title>x</title><script>document.title = 'taken over'; fetch('/stolen')</script>"
# name: (what its maker says it is, what it is)
CONTENTS: dict[str, tuple[str, bytes]] = {
    "shot.png": ("image/png", png()),
    "ocr.json": ("application/json", b'{\n  "pages": 50,\n  "words": 18211,\n  "language": "en"\n}\n'),
    "page.html": ("text/html", SCRIPT),
    "report.pdf": ("application/pdf", pdf()),
    "voice.wav": ("audio/wav", wav()),
    "drawing.svg": (
        "image/svg+xml",
        b'<svg xmlns="http://www.w3.org/2000/svg" onload="fetch(1)"><script>fetch("/stolen")</script></svg>',
    ),
    "pretends.png": ("image/png", SCRIPT),
    "archive.zip": ("application/zip", b"PK\x03\x04" + bytes(40)),
}
