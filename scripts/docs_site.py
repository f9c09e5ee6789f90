"""Hooks of the documentation site (mkdocs.yml): navigation from folders, links into the repository, inline diagrams.

A new page under docs/ appears in the navigation of its folder without a change here. `FIRST_PAGES` only says
which pages come first; the others follow in the order of their titles.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS_DIR = ROOT / "docs"
# Pages of the repository's root that the site shows too.
ROOT_PAGES = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
SYSTEM_PAGES = (
    "bookmarks.md",
    "clips.md",
    "exports.md",
    "media.md",
    "reports.md",
    "build-a-system.md",
    "pages.md",
)
FIRST_PAGES: dict[str, tuple[str, ...]] = {
    "tutorial": ("index.md",),
    "guide": ("tasks.md", "jobs.md", "schedules.md", "fairness.md", "messages.md", "files.md", "http-api.md",
              "dashboard.md", "cli.md", "testing.md"),
    "coming-from": ("index.md", "celery.md"),
    "explain": ("concepts.md", "states.md", "leases.md", "messages.md", "architecture.md", "comparison.md", "benchmarks.md"),
    "operate": ("install.md", "workers.md", "upgrade.md", "security.md", "metrics.md", "logs.md"),
    "reference": ("python.md", "python-modules.md", "http.md", "cli.md", "sql.md", "settings.md", "errors.md", "events.md", "metrics.md"),
    "decisions": (),
}  # fmt: skip
LINK_PATTERN = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|mailto:|#)([^)\s]+)\)")
IMAGE_PATTERN = re.compile(r'<img alt="([^"]*)" src="([^"]+\.svg)"[^>]*/?>')
LIST_ITEM_PATTERN = re.compile(r"(?:[-*+]|\d+\.) ")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = build_navigation()
    return config


def build_navigation() -> list[Any]:
    guide = list_pages("guide")
    systems = [page for page in guide if Path(page).name in SYSTEM_PAGES]
    explain = list_pages("explain")
    named = {"index.md", "quickstart.md", "glossary.md", "faq.md", "troubleshooting.md", "status.md"}
    other_pages = [page.name for page in sorted(DOCS_DIR.glob("*.md")) if page.name not in named]
    project = [name for name, source in ROOT_PAGES.items() if (ROOT / source).exists()]
    sections: dict[str, list[Any]] = {
        "Start": ["quickstart.md", *nest_pages("Tutorial", "tutorial"), "faq.md", *other_pages],
        "Guides": [page for page in guide if page not in systems] + [{"Systems": systems}],
        "Coming from": list_pages("coming-from"),
        "Concepts": [*explain, "glossary.md"],
        "Operate": ["troubleshooting.md", *list_pages("operate")],
        "Reference": list_pages("reference"),
        "Project": ["status.md", *project, *nest_pages("Decisions", "decisions")],
    }
    return [{"Home": "index.md"}, *({title: pages} for title, pages in sections.items() if pages)]


def nest_pages(title: str, folder: str) -> list[dict[str, list[str]]]:
    pages = list_pages(folder)
    return [{title: pages}] if pages else []


def list_pages(folder: str) -> list[str]:
    """Return the pages of a folder: those of FIRST_PAGES, then the others by title (decisions by number)."""
    first = FIRST_PAGES[folder]
    pages = list((DOCS_DIR / folder).glob("*.md"))
    last = len(first)

    def sort_key(page: Path) -> tuple[int, str]:
        rank = first.index(page.name) if page.name in first else last
        numbered = page.name[:1].isdigit()
        return rank, page.name if numbered else read_title(page).lower()

    return [f"{folder}/{page.name}" for page in sorted(pages, key=sort_key)]


def read_title(page: Path) -> str:
    match = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else page.stem


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, source in ROOT_PAGES.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    del config, files
    name = page.file.src_uri
    page.meta["hide"] = choose_hidden_parts(name)
    source = ROOT / ROOT_PAGES[name] if name in ROOT_PAGES else DOCS_DIR / name
    rewritten = LINK_PATTERN.sub(lambda match: rewrite_link(match, source), markdown)
    return separate_lists(rewritten) + append_examples(markdown)


def choose_hidden_parts(name: str) -> list[str]:
    """Return which side columns a page does without: wide tables and code side by side need the room."""
    if name == "index.md":
        return ["navigation", "toc"]
    return ["toc"] if name.startswith("coming-from/") or name == "explain/comparison.md" else []


def append_examples(markdown: str) -> str:
    """Return the complete programs whose parts a page shows, to copy from the end of the page."""
    blocks = re.findall(r"^```python\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE)
    names = dict.fromkeys(re.findall(r"`(examples/\w+\.py)`", markdown))
    parts: list[str] = []
    for name in names:
        code = (ROOT / name).read_text(encoding="utf-8") if (ROOT / name).exists() else ""
        if any(block.strip() in code for block in blocks):
            indented = "".join(f"    {line}".rstrip() + "\n" for line in code.splitlines())
            parts.append(
                f'\n\n??? example "The complete program: {name}"\n\n    ```python\n{indented}    ```\n'
            )
    return "".join(parts)


def rewrite_link(match: re.Match[str], source: Path) -> str:
    """Point links of root pages into docs/, and name files of the repository that are not part of the site."""
    text, target = match.groups()
    path, hash_sign, anchor = target.partition("#")
    resolved = Path(os.path.normpath(source.parent / path))
    root_page = next((name for name, root in ROOT_PAGES.items() if resolved == ROOT / root), None)
    if root_page:
        resolved = DOCS_DIR / root_page
    elif not resolved.exists():
        return match[0]  # mkdocs reports it
    elif not resolved.is_relative_to(DOCS_DIR) or resolved.is_dir():
        return f'<span class="repository-file" title="{resolved.relative_to(ROOT)} in the repository">{text}</span>'
    page_dir = DOCS_DIR if source.parent == ROOT else source.parent
    return f"[{text}]({os.path.relpath(resolved, page_dir)}{hash_sign}{anchor})"


def separate_lists(markdown: str) -> str:
    """Insert the empty line before a list that Python-Markdown needs and GitHub does not."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        previous = lines[-1] if lines else ""
        continues = not previous.strip() or previous[:1] == " " or LIST_ITEM_PATTERN.match(previous)
        if not fenced and LIST_ITEM_PATTERN.match(line) and not continues and not _inside_list(lines):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _inside_list(lines: list[str]) -> bool:
    """Whether the last paragraph belongs to a list item whose text continues without indentation."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if LIST_ITEM_PATTERN.match(line):
            return True
    return False


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put diagrams into the page, so that they use the colours of the theme."""
    del config, files
    folder = (DOCS_DIR / page.file.src_uri).parent

    def inline(match: re.Match[str]) -> str:
        path = folder / match[2]
        if not path.exists() or "diagram" not in path.name:
            return match[0]
        svg = path.read_text(encoding="utf-8")
        return re.sub(r"^<svg ", f'<svg role="img" aria-label="{match[1]}" ', svg, count=1)

    return IMAGE_PATTERN.sub(inline, html)
