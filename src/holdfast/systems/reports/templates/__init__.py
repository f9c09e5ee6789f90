"""Typst templates of a report: a chapter, the book of all chapters, and the cover of recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOK_TEMPLATE: Final = Path(__file__).parent / "book.typ"
COVER_TEMPLATE: Final = Path(__file__).parent / "cover.typ"
CHAPTER_TEMPLATE: Final = Path(__file__).parent / "chapter.typ"
