"""Find installed fonts, and select fonts that have the characters of a text.

Typst falls back from font to font on its own. When no font has a character, it draws an empty box and reports
nothing. Therefore this module checks first. It looks up the characters that the fonts inside Typst may lack
in the character maps of the installed font files. The fonts that have them become the fallback list.
Characters that no font has are reported by script, so that nobody receives a page of empty boxes.
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

# Packages that contain fonts. They are located, never imported.
FONT_PACKAGE_NAMES = ("weblate_fonts", "zhplot", "matplotlib_fontja", "koreanize_matplotlib", "indico_fonts")
# Scripts that Libertinus Serif, which is part of Typst, covers completely.
ALWAYS_COVERED_SCRIPTS = frozenset({"Latin", "Greek", "Cyrillic", "Hebrew"})
RIGHT_TO_LEFT_LANGUAGES = frozenset({"ar", "he", "fa", "ur", "yi", "ps", "sd", "ug", "dv"})
REGULAR_FONT_WEIGHT = 400
# A text counts as Japanese if at least one of twenty of its letters is kana.
MAX_HAN_PER_KANA = 20
MAX_CODE_POINT = 0x10FFFF
# Noto Emoji (SIL Open Font License) is part of this package, because no package on PyPI has all emoji.
EMOJI_FONT_FOLDER = Path(__file__).parent / "emoji_font"
EMOJI_SCRIPT = "Emoji"
EMOJI_FONT_FAMILIES = ("Noto Color Emoji", "Noto Emoji")
# Emoji in the blocks of symbols, which text fonts only have in part (Unicode property Emoji_Presentation).
EMOJI_IN_SYMBOL_BLOCKS = frozenset(
    "⌚⌛⏩⏪⏫⏬⏰⏳◽◾☔☕♈♉♊♋♌♍♎♏♐♑♒♓♿⚓⚡⚪⚫⚽⚾⛄⛅⛎⛔⛪⛲⛳⛵⛺⛽✅✊✋✨❌❎❓❔❕❗➕➖➗➰➿⬛⬜⭐⭕"  # noqa: RUF001
)
_SCRIPT_BY_NAME_PREFIX = {
    "Cjk": "Han",
    "Hangul": "Hangul",
    "Hiragana": "Kana",
    "Katakana": "Kana",
    "Halfwidth": "Kana",
}
_PREFERRED_FAMILIES_BY_LANGUAGE = {
    "ja": ("Noto Sans CJK JP", "Noto Sans JP", "Kurinto Sans JP", "IPAexGothic"),
    "ko": ("Noto Sans CJK KR", "Noto Sans KR", "Kurinto Sans KR", "NanumGothic"),
    "zh": ("Noto Sans CJK SC", "Noto Sans SC", "Kurinto Sans SC", "WenQuanYi Micro Hei"),
    "zh-hant": ("Noto Sans CJK TC", "Noto Sans TC", "Kurinto Sans TC"),
    "ar": ("Noto Naskh Arabic", "Noto Sans Arabic", "Kurinto Sans", "DejaVu Sans"),
}
_LANGUAGE_BY_SCRIPT = {
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


def find_letter_script(character: str) -> str | None:
    """Return the script of a letter, such as "Latin". Return None for digits, marks and symbols."""
    if not unicodedata.category(character).startswith("L"):
        return None
    prefix = unicodedata.name(character, "UNKNOWN LETTER").split(" ")[0].split("-")[0].title()
    return _SCRIPT_BY_NAME_PREFIX.get(prefix, prefix)


def is_emoji(character: str) -> bool:
    """Return whether a character is a pictograph that ordinary text fonts do not have."""
    return "\U0001f000" <= character <= "\U0001faff" or character in EMOJI_IN_SYMBOL_BLOCKS


def count_letters_by_script(text: Iterable[str]) -> dict[str, int]:
    """Count the letters of each script in a text."""
    counts: dict[str, int] = {}
    for character in text:
        script = find_letter_script(character)
        if script is not None:
            counts[script] = counts.get(script, 0) + 1
    return counts


def guess_language(text: str) -> str:
    """Guess the language of a text from its script, for hyphenation, quotation marks and direction."""
    counts = count_letters_by_script(text)
    if counts.get("Kana", 0) * MAX_HAN_PER_KANA >= counts.get("Han", 0) and counts.get("Kana"):
        counts["Kana"] = counts.pop("Han", 0) + counts["Kana"]
    script = max(counts, key=lambda name: counts[name], default="Latin")
    return _LANGUAGE_BY_SCRIPT.get(script, "en")


@dataclass(frozen=True)
class FontCoverage:
    """Fallback font families of a text, and the letters that no installed font has, by script."""

    families: tuple[str, ...]
    missing: Mapping[str, str]


class FontCatalog:
    """Available fonts: built into Typst, of the operating system, in font packages and in `folders`."""

    def __init__(self, folders: Sequence[Path] = (), *, system: bool = True, packages: bool = True) -> None:
        package_folders = _list_font_package_folders() if packages else []
        paths = [str(folder) for folder in (*folders, *package_folders, EMOJI_FONT_FOLDER)]
        self.typst_fonts = typst.Fonts(include_system_fonts=system, font_paths=paths)
        self.families = frozenset(self.typst_fonts.families())
        self._files: dict[str, list[tuple[str, int]]] = {}
        for font in self.typst_fonts.fonts():
            if font.path is not None and font.weight == REGULAR_FONT_WEIGHT and font.style == "normal":
                self._files.setdefault(font.family, []).append((font.path, font.index))

    def filter_installed_families(self, families: Sequence[str]) -> list[str]:
        """Return the font families that are installed, in the same order."""
        return [family for family in families if family in self.families]

    def compute_font_coverage(self, text: str, language: str) -> FontCoverage:
        """Select font families that together have all characters of a text."""
        uncovered = {
            c
            for c in set(text)
            if is_emoji(c) or find_letter_script(c) not in {None, *ALWAYS_COVERED_SCRIPTS}
        }
        chosen: list[str] = []
        for family in self._iterate_candidate_families(language) if uncovered else ():
            covered = uncovered & self._read_family_characters(family)
            if covered:
                chosen.append(family)
                uncovered -= covered
            if not uncovered:
                break
        # DejaVu Sans Mono, which is part of Typst, has Arabic: not beautiful, but readable everywhere.
        uncovered = {c for c in uncovered if not "\u0600" <= c <= "\u06ff"}
        missing: dict[str, str] = {}
        for character in sorted(uncovered):
            script = EMOJI_SCRIPT if is_emoji(character) else find_letter_script(character) or "Unknown"
            missing[script] = missing.get(script, "") + character
        return FontCoverage(tuple(chosen), missing)

    def _iterate_candidate_families(self, language: str) -> Iterator[str]:
        """Yield installed font families: first for the language, then for other languages, then all."""
        base_language = language.lower().split("-")[0]
        preferred = _PREFERRED_FAMILIES_BY_LANGUAGE.get(
            language.lower(), _PREFERRED_FAMILIES_BY_LANGUAGE.get(base_language, ())
        )
        others = [family for families in _PREFERRED_FAMILIES_BY_LANGUAGE.values() for family in families]
        listed: set[str] = set()
        for family in (*preferred, *EMOJI_FONT_FAMILIES, *others, *sorted(self._files)):
            if family in self._files and family not in listed:
                listed.add(family)
                yield family

    def _read_family_characters(self, family: str) -> frozenset[str]:
        path, index = self._files[family][0]
        return read_font_characters(path, index)


def _list_font_package_folders() -> list[Path]:
    folders: list[Path] = []
    for name in FONT_PACKAGE_NAMES:
        spec = importlib.util.find_spec(name)
        folders += [Path(path) for path in (spec.submodule_search_locations or ())] if spec else []
    return folders


@lru_cache(maxsize=1024)
def read_font_characters(path: str, index: int = 0) -> frozenset[str]:
    """Return the characters that a font file has glyphs for. Return an empty set for unreadable files."""
    try:
        with Path(path).open("rb") as file:
            return frozenset(_parse_character_map(file.read(), index))
    except (OSError, struct.error, ValueError):
        return frozenset()


def _parse_character_map(font: bytes, index: int) -> Iterator[str]:
    """Yield the characters in the `cmap` table of a font, in formats 4 and 12."""
    start = struct.unpack_from(">I", font, 12 + 4 * index)[0] if font[:4] == b"ttcf" else 0
    for number in range(struct.unpack_from(">H", font, start + 4)[0]):
        tag, _, position, _ = struct.unpack_from(">4sIII", font, start + 12 + 16 * number)
        if tag == b"cmap":
            break
    else:
        return
    table_count = struct.unpack_from(">H", font, position + 2)[0]
    offsets = {struct.unpack_from(">HHI", font, position + 4 + 8 * n)[2] for n in range(table_count)}
    for offset in offsets:
        table_format = struct.unpack_from(">H", font, position + offset)[0]
        if table_format == 4:
            yield from _parse_cmap_format_4(font, position + offset)
        elif table_format == 12:
            for group in range(struct.unpack_from(">I", font, position + offset + 12)[0]):
                first, last, _ = struct.unpack_from(">III", font, position + offset + 16 + 12 * group)
                yield from map(chr, range(first, min(last, MAX_CODE_POINT) + 1))


def _parse_cmap_format_4(font: bytes, position: int) -> Iterator[str]:
    count = struct.unpack_from(">H", font, position + 6)[0] // 2
    ends = struct.unpack_from(f">{count}H", font, position + 14)
    starts = struct.unpack_from(f">{count}H", font, position + 16 + 2 * count)
    range_offsets = position + 16 + 6 * count
    offsets = struct.unpack_from(f">{count}H", font, range_offsets)
    for number, (first, last, offset) in enumerate(zip(starts, ends, offsets, strict=True)):
        for code in range(first, last + 1):
            glyph = range_offsets + 2 * number + offset + 2 * (code - first)
            # A segment may contain code points without a glyph; these characters are missing.
            if code != 0xFFFF and (offset == 0 or font[glyph : glyph + 2] != b"\0\0"):
                yield chr(code)
