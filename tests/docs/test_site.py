"""Tests that the documentation site builds, has no broken link and loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import docs_site

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)  # the first test builds the site
# Attributes that make a browser load something. A link that a reader clicks may lead anywhere.
LOADING_ATTRIBUTES = {"src", "srcset", "poster", "data", "action", "formaction"}
CSS_URL_PATTERN = re.compile(r"(?:url\(|@import\s*)[\"']?\s*((?:https?:)?//[^\"')\s]+)")


class PageParser(HTMLParser):
    """Collect what a page loads, where it links to, and the ids it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif name in LOADING_ATTRIBUTES or (tag == "link" and name == "href"):
                self.loads.append(value)
            elif tag == "a" and name == "href":
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, PageParser]:
    return {path: PageParser(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def is_outside(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def test_every_page_of_the_docs_is_built(site: Path) -> None:
    for source in (ROOT / "docs").rglob("*.md"):
        relative = source.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / relative).is_file(), source


def test_pages_load_nothing_from_other_hosts(pages: dict[Path, PageParser]) -> None:
    outside = {(path.name, load) for path, page in pages.items() for load in page.loads if is_outside(load)}
    assert not outside


def test_styles_load_nothing_from_other_hosts(site: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in [*site.rglob("*.css"), *site.rglob("*.html")]]
    assert not [url for text in texts for url in CSS_URL_PATTERN.findall(text)]


def test_no_page_uses_what_the_theme_would_load_from_elsewhere(site: Path) -> None:
    """The script of the theme loads Mermaid and facts about a repository from other hosts when asked to."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert 'class="mermaid"' not in text, path
        assert 'data-md-component="source"' not in text, path


def iterate_broken_links(pages: dict[Path, PageParser]) -> Iterator[tuple[str, str]]:
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if path.name == "404.html" or parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            missing_anchor = known is not None and parts.fragment and unquote(parts.fragment) not in known.ids
            if not target.is_file() or missing_anchor:
                yield path.name, link


def test_no_link_is_broken(pages: dict[Path, PageParser]) -> None:
    assert not sorted(set(iterate_broken_links(pages)))


def test_search_works_without_a_server(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert {"quickstart.html", "guide/jobs.html"} <= {entry["location"] for entry in index["docs"]}
    # From disk, browsers read the index as a script, through a shim that must be local.
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = ")
    assert "assets/iframe-worker.js" in (site / "index.html").read_text(encoding="utf-8")


def test_site_has_a_dark_theme(site: Path) -> None:
    assert 'data-md-color-scheme="slate"' in (site / "index.html").read_text(encoding="utf-8")


def test_a_new_page_appears_in_the_navigation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in docs_site.FIRST_PAGES:
        (tmp_path / folder).mkdir()
    (tmp_path / "guide" / "zebras.md").write_text("# Animals\n")
    (tmp_path / "guide" / "ants.md").write_text("# Zoo\n")
    (tmp_path / "guide" / "jobs.md").write_text("# Jobs\n")
    monkeypatch.setattr(docs_site, "DOCS_DIR", tmp_path)
    assert docs_site.list_pages("guide") == ["guide/jobs.md", "guide/zebras.md", "guide/ants.md"]
    sections = {title: value for entry in docs_site.build_navigation() for title, value in entry.items()}
    assert sections["Guides"][:3] == ["guide/jobs.md", "guide/zebras.md", "guide/ants.md"]
