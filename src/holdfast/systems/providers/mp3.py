"""Encode MP3 files with LAME, and measure their duration and bit rate."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from holdfast.errors import RefusedError
from holdfast.systems.providers.mp3_tags import find_audio_offset

MP3_BIT_RATE_KBPS = 128
DEFAULT_SAMPLE_RATE_HZ = 44100
LAME_QUALITY = 5  # 0 is best and slowest, 9 is worst and fastest
# By the two version bits of a frame header: MPEG 1, MPEG 2 and MPEG 2.5.
_SAMPLE_RATES_HZ_BY_MPEG_VERSION = {
    3: (44100, 48000, 32000),
    2: (22050, 24000, 16000),
    0: (11025, 12000, 8000),
}
_MPEG1_BIT_RATES_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG2_BIT_RATES_KBPS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


@dataclass(frozen=True)
class Mp3Properties:
    """Duration, bit rate (kbit/s) and sample rate (Hz) of an MP3 file."""

    duration_s: float
    bit_rate: int
    sample_rate: int


@dataclass(frozen=True)
class _Mp3FrameHeader:
    byte_length: int
    sample_count: int
    sample_rate: int
    bit_rate: int


def encode_mp3(samples: bytes, sample_rate: int, channels: int = 1) -> bytes:
    """Encode 16-bit samples as an MP3 file with a constant bit rate of 128 kbit/s."""
    supported = {rate for rates in _SAMPLE_RATES_HZ_BY_MPEG_VERSION.values() for rate in rates[:2]}
    encoder = _create_mp3_encoder()
    encoder.set_bit_rate(MP3_BIT_RATE_KBPS)
    encoder.set_in_sample_rate(sample_rate)
    encoder.set_out_sample_rate(sample_rate if sample_rate in supported else DEFAULT_SAMPLE_RATE_HZ)
    encoder.set_channels(channels)
    encoder.set_quality(LAME_QUALITY)
    encoder.silence()
    return bytes(encoder.encode(samples) + encoder.flush())


def _create_mp3_encoder() -> Any:
    try:
        return importlib.import_module("lameenc").Encoder()
    except ImportError:
        raise RefusedError(
            "The package 'lameenc', which encodes MP3, is not installed.",
            fix="pip install 'holdfast[speech]'",
        ) from None


def measure_mp3(mp3: bytes) -> Mp3Properties | None:
    """Measure the duration and bit rate of an MP3 file. Return None if the content is not MP3."""
    position = find_audio_offset(mp3)
    duration_s, frame_count, total_bit_rate, sample_rate = 0.0, 0, 0, 0
    while position + 4 <= len(mp3):
        frame = _parse_mp3_frame_header(mp3[position : position + 4])
        if frame is None:
            break
        sample_rate = frame.sample_rate
        duration_s += frame.sample_count / sample_rate
        total_bit_rate += frame.bit_rate
        frame_count += 1
        position += frame.byte_length
    if frame_count < 2:
        return None
    return Mp3Properties(round(duration_s, 3), round(total_bit_rate / frame_count), sample_rate)


def _parse_mp3_frame_header(header: bytes) -> _Mp3FrameHeader | None:
    """Parse the header of an MP3 frame. Return None if the bytes are not such a header."""
    if header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    version, rate_index, bit_rate_index = header[1] >> 3 & 3, header[2] >> 2 & 3, header[2] >> 4
    if version == 1 or rate_index == 3 or bit_rate_index in (0, 15):
        return None
    sample_rate = _SAMPLE_RATES_HZ_BY_MPEG_VERSION[version][rate_index]
    bit_rate = (_MPEG1_BIT_RATES_KBPS if version == 3 else _MPEG2_BIT_RATES_KBPS)[bit_rate_index]
    sample_count = 1152 if version == 3 else 576
    padding = header[2] >> 1 & 1
    byte_length = sample_count // 8 * bit_rate * 1000 // sample_rate + padding
    return _Mp3FrameHeader(byte_length, sample_count, sample_rate, bit_rate)
