"""MP3: making it with LAME, and measuring it frame by frame."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from holdfast.errors import RefusedError

BIT_RATE = 128
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_KBPS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBPS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


@dataclass(frozen=True)
class Measured:
    seconds: float
    bit_rate: int
    sample_rate: int


def encode(samples: bytes, rate: int, channels: int = 1) -> bytes:
    """16-bit samples to MP3 of a constant 128 kbit/s."""
    encoder = _encoder()
    encoder.set_bit_rate(BIT_RATE)
    encoder.set_in_sample_rate(rate)
    encoder.set_out_sample_rate(
        rate if rate in {r for rates in _RATES.values() for r in rates[:2]} else 44100
    )
    encoder.set_channels(channels)
    encoder.set_quality(5)
    encoder.silence()
    return bytes(encoder.encode(samples) + encoder.flush())


def _encoder() -> Any:
    try:
        return importlib.import_module("lameenc").Encoder()
    except ImportError:
        raise RefusedError("MP3 needs lameenc.", fix="Install holdfast[speech].") from None


def measure(mp3: bytes) -> Measured | None:
    """The length by counting frames; None when this is no MP3."""
    place = _after_tag(mp3)
    seconds, frames, bits, sample_rate = 0.0, 0, 0, 0
    while place + 4 <= len(mp3):
        frame = _frame(mp3[place : place + 4])
        if frame is None:
            break
        length, samples, sample_rate, kbps = frame
        seconds += samples / sample_rate
        bits += kbps
        frames += 1
        place += length
    if frames < 2:
        return None
    return Measured(round(seconds, 3), round(bits / frames), sample_rate)


def _after_tag(mp3: bytes) -> int:
    if mp3[:3] != b"ID3" or len(mp3) < 10:
        return 0
    a, b, c, d = mp3[6:10]
    return 10 + (a << 21 | b << 14 | c << 7 | d)


def _frame(head: bytes) -> tuple[int, int, int, int] | None:
    """Length in bytes, samples, samples a second and kbit/s of a layer III frame."""
    if head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version, rate_index, kbps_index = head[1] >> 3 & 3, head[2] >> 2 & 3, head[2] >> 4
    if version == 1 or rate_index == 3 or kbps_index in (0, 15):
        return None
    rate = _RATES[version][rate_index]
    kbps = (_KBPS_1 if version == 3 else _KBPS_2)[kbps_index]
    samples = 1152 if version == 3 else 576
    return samples // 8 * kbps * 1000 // rate + (head[2] >> 1 & 1), samples, rate, kbps
