"""MP3 tags: what players show, and the audio behind the tag stays the same."""

from __future__ import annotations

import struct

from holdfast.systems.providers.mp3 import encode_mp3, measure_mp3
from holdfast.systems.providers.mp3_tags import Mp3Chapter, Mp3Tags, add_mp3_tags, find_audio_offset


def read_frames(tag: bytes) -> list[tuple[str, bytes]]:
    frames: list[tuple[str, bytes]] = []
    while len(tag) >= 10:
        (size,) = struct.unpack(">I", tag[4:8])
        frames.append((tag[:4].decode(), tag[10 : 10 + size]))
        tag = tag[10 + size :]
    return frames


def test_tags_have_title_cover_and_chapters() -> None:
    mp3 = encode_mp3(b"\0\0" * 22050 * 2, 22050)
    chapters = [
        Mp3Chapter(title="Hunger", start_s=0, end_s=1.25),
        Mp3Chapter(title="心", start_s=1.25, end_s=2),
    ]
    tags = Mp3Tags(
        title="Hunger 🚀", album="The whole story", artist="a model", track=2, track_count=16,
        cover=b"\x89PNG picture", chapters=chapters,
    )  # fmt: skip
    tagged = add_mp3_tags(mp3, tags)
    assert measure_mp3(tagged) == measure_mp3(mp3)
    offset = find_audio_offset(tagged)
    assert tagged[offset:] == mp3
    frames = read_frames(tagged[10:offset])
    texts = {name: body[1:].decode("utf-16") for name, body in frames if name[0] == "T"}
    assert texts == {"TIT2": "Hunger 🚀", "TALB": "The whole story", "TPE1": "a model", "TRCK": "2/16"}
    assert dict(frames)["APIC"] == b"\0image/png\0\x03\0\x89PNG picture"
    assert dict(frames)["CTOC"] == b"contents\0\x03\x02chapter1\0chapter2\0"
    second = [body for name, body in frames if name == "CHAP"][1]
    assert struct.unpack(">II", second[9:17]) == (1250, 2000)
    assert read_frames(second[25:])[0][1][1:].decode("utf-16") == "心"
    # A second tag replaces the first.
    assert add_mp3_tags(tagged, tags) == tagged
