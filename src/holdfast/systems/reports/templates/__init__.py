"""Typst templates of a report: one for a chapter and one for the book of all chapters."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOK_TEMPLATE: Final = Path(__file__).parent / "book.typ"
CHAPTER_TEMPLATE: Final = Path(__file__).parent / "chapter.typ"
