"""Serve the web pages of the systems: one layout and shared files, and a folder for each page.

The folder of the page `notes` has `content.html` (the elements of the page), `notes.js` and `notes.css`. See
docs/guide/pages.md.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from starlette.routing import BaseRoute

from holdfast.server import create_static_page_routes

SHARED_PAGE_FOLDER = Path(__file__).parent / "page"


def create_page_routes(path: str, folder: Path, title: str) -> list[BaseRoute]:
    """Create the routes of the web page of one system, at a path such as `/exports`.

    A JavaScript, CSS or SVG file in `folder` replaces the shared file of the same name.
    """
    index = render_page(path.removeprefix("/"), title, (folder / "content.html").read_text(encoding="utf-8"))
    return create_static_page_routes(path, SHARED_PAGE_FOLDER, folder, index=index)


def render_page(name: str, title: str, content: str) -> str:
    """Insert the name, the title and the content (HTML) of a page into the shared layout."""
    layout = (SHARED_PAGE_FOLDER / "layout.html").read_text(encoding="utf-8")
    # The content comes last, because it may contain the other placeholders as text.
    values = {"{name}": escape(name), "{title}": escape(title), "{content}": content}
    for placeholder, value in values.items():
        layout = layout.replace(placeholder, value)
    return layout
