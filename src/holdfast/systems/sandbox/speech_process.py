"""The program that turns one piece of sound into text. It reads one request and writes one JSON object.

    python -m holdfast.systems.sandbox.speech_process NAME=VALUE ... --

The request names a file with 16-bit mono samples of 16 kHz in the working folder, and the folder of a Whisper
model, or none for pocketsphinx and the English model in its package.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from holdfast.systems.sandbox.confinement import confine_process, open_standard_streams, parse_options

SAMPLE_RATE_HZ = 16_000
BLOCK_BYTES = 4096
FRAME_RATE_HZ = 100
# Fewer words in a segment are easier to follow, more make a sentence.
MAX_SEGMENT_S, MIN_PAUSE_S = 8.0, 0.6
NOT_SPOKEN = ("<", "[", "+")


def recognize_with_pocketsphinx(path: str) -> dict[str, Any]:
    """Return the segments of a file. The words come with their times."""
    pocketsphinx: Any = importlib.import_module("pocketsphinx")
    decoder = pocketsphinx.Decoder(samprate=SAMPLE_RATE_HZ, loglevel="FATAL")
    words: list[tuple[float, float, str]] = []
    decoder.start_utt()
    with open(path, "rb") as file:  # noqa: PTH123
        while block := file.read(BLOCK_BYTES):
            decoder.process_raw(block, False, False)
    decoder.end_utt()
    for part in decoder.seg() or ():
        word = part.word.partition("(")[0]
        if word and not word.startswith(NOT_SPOKEN):
            words.append((part.start_frame / FRAME_RATE_HZ, part.end_frame / FRAME_RATE_HZ, word))
    return {"segments": join_words(words), "language": "en"}


def join_words(words: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Join words to segments that end at pauses."""
    segments: list[tuple[float, float, str]] = []
    for start, end, word in words:
        if segments and start - segments[-1][1] < MIN_PAUSE_S and end - segments[-1][0] < MAX_SEGMENT_S:
            first, _, text = segments[-1]
            segments[-1] = (first, end, f"{text} {word}")
        else:
            segments.append((start, end, word))
    return segments


def recognize_with_whisper(path: str, model_path: str, language: str | None) -> dict[str, Any]:
    """Return the segments of a file, recognised with a Whisper model in CTranslate2 format."""
    faster_whisper: Any = importlib.import_module("faster_whisper")
    np: Any = importlib.import_module("numpy")
    model = faster_whisper.WhisperModel(model_path, device="cpu", compute_type="int8", local_files_only=True)
    samples = np.fromfile(path, dtype=np.int16).astype(np.float32) / 32768
    segments, info = model.transcribe(samples, language=language)
    return {"segments": [(part.start, part.end, part.text) for part in segments], "language": info.language}


def main() -> None:
    options, _ = parse_options(sys.argv[1:])
    open_standard_streams()
    request = json.loads(sys.stdin.buffer.read())
    confine_process(options, is_python=True)
    if request["model_path"]:
        result = recognize_with_whisper(request["file"], request["model_path"], request["language"])
    else:
        result = recognize_with_pocketsphinx(request["file"])
    os.write(1, json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main()
