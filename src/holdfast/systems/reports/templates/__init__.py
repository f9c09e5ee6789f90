"""The two templates of a report: a chapter alone, and all of them as a book."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOK: Final = Path(__file__).parent / "book.typ"
CHAPTER: Final = Path(__file__).parent / "chapter.typ"
