"""Small media files, made with the ffmpeg of the wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

from holdfast.systems.media.ffmpeg import find_ffmpeg


def make_media(path: Path, *arguments: str, seconds: float = 3, size: str = "160x120") -> Path:
    """Write a film with a test picture and a tone. `arguments` choose the codecs and the format."""
    source = f"testsrc=d={seconds}:s={size}:r=10,format=yuv420p"
    subprocess.run(
        [str(find_ffmpeg()), "-v", "error", "-y", "-f", "lavfi", "-i", source, "-f", "lavfi", "-i",
         f"sine=d={seconds}", *arguments, str(path)],
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return path


def make_mp4(path: Path, seconds: float = 3, size: str = "160x120", *arguments: str) -> Path:
    codecs = ("-c:v", "libx264", "-preset", "ultrafast", "-c:a", "aac")
    return make_media(path, *codecs, *arguments, seconds=seconds, size=size)
