"""Split transcripts into passages that can be found, and reduce embeddings to signatures of 256 bits."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

PASSAGE_CHARS: Final = 400  # about half a minute of speech
MAX_PASSAGE_CHARS: Final = 1_000
MAX_PASSAGES: Final = 2_000
SIGNATURE_BITS: Final = 256
MAX_DIMENSION: Final = 16_000
_SENTENCE_END: Final = re.compile(r"(?<=[.!?\u3002\uff01\uff1f\u061f])\s+|(?<=[\u3002\uff01\uff1f])")
# Embeddings with more numbers are folded to 256 sums, each number with a sign that is always the same.
_random_signs = random.Random(256)  # noqa: S311  (no secret)
_FOLDING_SIGNS: Final = tuple(_random_signs.choice((-1.0, 1.0)) for _ in range(MAX_DIMENSION))


@dataclass(frozen=True)
class Passage:
    """A part of a transcript. The times are None if the transcript has none."""

    number: int
    start: float | None
    end: float | None
    text: str


def split_transcript(transcript: str, segments: Sequence[tuple[float, float, str]]) -> list[Passage]:
    """Split a transcript into passages of about half a minute, at the borders of its parts or sentences."""
    has_times = any(end > 0 for _, end, _ in segments)
    parts = segments if has_times else [(0.0, 0.0, text) for text in _SENTENCE_END.split(transcript)]
    passages: list[Passage] = []
    texts: list[str] = []
    start = end = 0.0

    def close_passage() -> None:
        nonlocal texts
        if texts and len(passages) < MAX_PASSAGES:
            first, last = (start, end) if has_times else (None, None)
            passages.append(Passage(len(passages), first, last, " ".join(texts)))
        texts = []

    for part_start, part_end, text in parts:
        for piece in _cut_text(text.strip()):
            if texts and sum(map(len, texts)) + len(piece) > PASSAGE_CHARS:
                close_passage()
            if not texts:
                start = part_start
            texts.append(piece)
            end = max(part_end, part_start)
    close_passage()
    return passages


def _cut_text(text: str) -> Iterator[str]:
    """Cut a text that is too long for one passage, at a space if there is one."""
    while len(text) > MAX_PASSAGE_CHARS:
        cut = text.rfind(" ", PASSAGE_CHARS, MAX_PASSAGE_CHARS)
        cut = cut if cut > 0 else MAX_PASSAGE_CHARS
        yield text[:cut].strip()
        text = text[cut:].strip()
    if text:
        yield text


def normalize_vector(vector: Sequence[float]) -> list[float]:
    """Scale an embedding to the length 1, so that the inner product of two is their cosine."""
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector] if length > 0 else list(vector)


def compute_signature(vector: Sequence[float]) -> str:
    """Return the signs of an embedding as 256 characters, 0 or 1. Similar embeddings differ in few bits."""
    sums = [0.0] * SIGNATURE_BITS
    for number, value in enumerate(vector[:MAX_DIMENSION]):
        sums[number % SIGNATURE_BITS] += value * _FOLDING_SIGNS[number]
    return "".join("1" if value > 0 else "0" for value in sums)
