"""Which fonts there are, and which of them can write a given text.

Typst falls back from font to font on its own, but draws an empty box when it runs out of them and says
nothing. So we look first: the characters of a text that the fonts inside Typst may lack are searched for in
the character maps of the font files. What is found becomes the list of fallbacks, and what is not found is
named by its script, so that nobody gets a page of boxes.
"""

from __future__ import annotations

import importlib.util
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import typst

# Wheels that carry fonts; looked for, never imported.
FONT_PACKAGES = ("weblate_fonts", "zhplot", "matplotlib_fontja", "koreanize_matplotlib", "indico_fonts")
# What Libertinus Serif, inside Typst, has all letters of.
EVERYWHERE = frozenset({"Latin", "Greek", "Cyrillic", "Hebrew"})
_SCRIPTS = {"Cjk": "Han", "Hangul": "Hangul", "Hiragana": "Kana", "Katakana": "Kana", "Halfwidth": "Kana"}
_FIRST = {
    "ja": ("Noto Sans CJK JP", "Noto Sans JP", "Kurinto Sans JP", "IPAexGothic"),
    "ko": ("Noto Sans CJK KR", "Noto Sans KR", "Kurinto Sans KR", "NanumGothic"),
    "zh": ("Noto Sans CJK SC", "Noto Sans SC", "Kurinto Sans SC", "WenQuanYi Micro Hei"),
    "zh-hant": ("Noto Sans CJK TC", "Noto Sans TC", "Kurinto Sans TC"),
    "ar": ("Noto Naskh Arabic", "Noto Sans Arabic", "Kurinto Sans", "DejaVu Sans"),
}
_LANGUAGES = {
    "Han": "zh",
    "Kana": "ja",
    "Hangul": "ko",
    "Arabic": "ar",
    "Hebrew": "he",
    "Cyrillic": "ru",
    "Greek": "el",
    "Thai": "th",
    "Devanagari": "hi",
}
RIGHT_TO_LEFT = frozenset({"ar", "he", "fa", "ur", "yi", "ps", "sd", "ug", "dv"})


def script_of(character: str) -> str | None:
    """The script of a letter by the first word of its name; None for digits, marks and symbols."""
    if not unicodedata.category(character).startswith("L"):
        return None
    word = unicodedata.name(character, "UNKNOWN LETTER").split(" ")[0].split("-")[0].title()
    return _SCRIPTS.get(word, word)


def scripts_in(text: Iterable[str]) -> dict[str, int]:
    """How many letters of each script a text has."""
    found: dict[str, int] = {}
    for character in text:
        script = script_of(character)
        if script is not None:
            found[script] = found.get(script, 0) + 1
    return found


def language_of(text: str) -> str:
    """A guess by script: enough for hyphenation, quotes and direction, no more."""
    counts = scripts_in(text)
    if counts.get("Kana", 0) * 20 >= counts.get("Han", 0) and counts.get("Kana"):
        counts["Kana"] = counts.pop("Han", 0) + counts["Kana"]
    script = max(counts, key=lambda name: counts[name], default="Latin")
    return _LANGUAGES.get(script, "en")


@dataclass(frozen=True)
class Coverage:
    """Families to fall back on, and the letters nobody can write, by script."""

    families: tuple[str, ...]
    missing: Mapping[str, str]


class FontBook:
    """The fonts inside Typst, of the system, of font wheels that are installed, and in `folders`."""

    def __init__(self, folders: Sequence[Path] = (), *, system: bool = True, wheels: bool = True) -> None:
        places = [str(folder) for folder in (*folders, *(_wheel_folders() if wheels else ()))]
        self.fonts = typst.Fonts(include_system_fonts=system, font_paths=places)
        self.families = frozenset(self.fonts.families())
        self._files: dict[str, list[tuple[str, int]]] = {}
        for font in self.fonts.fonts():
            if font.path is not None and font.weight == 400 and font.style == "normal":
                self._files.setdefault(font.family, []).append((font.path, font.index))

    def pick(self, wanted: Sequence[str]) -> list[str]:
        """Those of the wanted families that are there."""
        return [family for family in wanted if family in self.families]

    def cover(self, text: str, language: str) -> Coverage:
        """The families that together can write the text."""
        hard = {c for c in set(text) if script_of(c) not in {None, *EVERYWHERE}}
        chosen: list[str] = []
        for family in self._candidates(language) if hard else ():
            has = hard & self._characters(family)
            if has:
                chosen.append(family)
                hard -= has
            if not hard:
                break
        # The monospaced DejaVu inside Typst writes Arabic: not beautiful, but readable everywhere.
        hard = {c for c in hard if not "\u0600" <= c <= "\u06ff"}
        missing: dict[str, str] = {}
        for character in sorted(hard):
            script = script_of(character) or "Unknown"
            missing[script] = missing.get(script, "") + character
        return Coverage(tuple(chosen), missing)

    def _candidates(self, language: str) -> Iterator[str]:
        short = language.lower().split("-")[0]
        own = _FIRST.get(language.lower(), _FIRST.get(short, ()))
        rest = [family for names in _FIRST.values() for family in names]
        seen: set[str] = set()
        for family in (*own, *rest, *sorted(self._files)):
            if family in self._files and family not in seen:
                seen.add(family)
                yield family

    def _characters(self, family: str) -> frozenset[str]:
        path, index = self._files[family][0]
        return characters_of(path, index)


def _wheel_folders() -> list[Path]:
    found: list[Path] = []
    for name in FONT_PACKAGES:
        spec = importlib.util.find_spec(name)
        found += [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return found


@lru_cache(maxsize=1024)
def characters_of(path: str, index: int = 0) -> frozenset[str]:
    """The characters a font file has glyphs for; none when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return frozenset(_characters(file.read(), index))
    except (OSError, struct.error, ValueError):
        return frozenset()


def _characters(font: bytes, index: int) -> Iterator[str]:
    """The `cmap` table, in the formats 4 and 12 that carry Unicode."""
    start = struct.unpack_from(">I", font, 12 + 4 * index)[0] if font[:4] == b"ttcf" else 0
    for number in range(struct.unpack_from(">H", font, start + 4)[0]):
        tag, _, place, _ = struct.unpack_from(">4sIII", font, start + 12 + 16 * number)
        if tag == b"cmap":
            break
    else:
        return
    tables = struct.unpack_from(">H", font, place + 2)[0]
    offsets = {struct.unpack_from(">HHI", font, place + 4 + 8 * n)[2] for n in range(tables)}
    for offset in offsets:
        kind = struct.unpack_from(">H", font, place + offset)[0]
        if kind == 4:
            yield from _segments(font, place + offset)
        elif kind == 12:
            for group in range(struct.unpack_from(">I", font, place + offset + 12)[0]):
                first, last, _ = struct.unpack_from(">III", font, place + offset + 16 + 12 * group)
                yield from map(chr, range(first, min(last, 0x10FFFF) + 1))


def _segments(font: bytes, place: int) -> Iterator[str]:
    count = struct.unpack_from(">H", font, place + 6)[0] // 2
    ends = struct.unpack_from(f">{count}H", font, place + 14)
    starts = struct.unpack_from(f">{count}H", font, place + 16 + 2 * count)
    ranges = place + 16 + 6 * count
    offsets = struct.unpack_from(f">{count}H", font, ranges)
    for number, (first, last, offset) in enumerate(zip(starts, ends, offsets, strict=True)):
        for code in range(first, last + 1):
            glyph = ranges + 2 * number + offset + 2 * (code - first)
            # A segment may hold places without a glyph; those count as absent.
            if code != 0xFFFF and (offset == 0 or font[glyph : glyph + 2] != b"\0\0"):
                yield chr(code)
