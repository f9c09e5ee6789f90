"""Write the files that a page of the docs shows: blocks of code with a title, such as `title="tasks.py"`."""

from __future__ import annotations

import re
from pathlib import Path

TITLED_BLOCK_PATTERN = re.compile(r"^``` ?\w+ title=\"([^\"]+)\"[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDITION = " (add)"


def read_titled_blocks(page: Path) -> list[tuple[str, str]]:
    """Return title and code of each block of a page that has a title."""
    return TITLED_BLOCK_PATTERN.findall(page.read_text(encoding="utf-8"))


def write_doc_files(page: Path, folder: Path) -> list[Path]:
    """Write the files of a page, as a reader would. A title with "(add)" adds to the end of a file."""
    written: list[Path] = []
    for title, code in read_titled_blocks(page):
        path = folder / title.removesuffix(ADDITION)
        if title.endswith(ADDITION):
            path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{code}", encoding="utf-8")
        else:
            path.write_text(code, encoding="utf-8")
        written.append(path)
    return written
