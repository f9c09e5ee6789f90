from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOC_PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RELATIVE_LINK_PATTERN = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:)([^)#]+)(#[^)]*)?\)")


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_are_not_broken(page: Path) -> None:
    missing = [
        link
        for link, _ in RELATIVE_LINK_PATTERN.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert not missing
