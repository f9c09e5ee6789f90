"""Serve the web pages of the systems: one layout and shared files, and a folder for each page.

The folder of the page `notes` has `content.html` (the elements of the page), `notes.js` and `notes.css`. See
docs/guide/pages.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import cast

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from holdfast.server import Endpoint, create_static_page_routes
from holdfast.systems.user_items import ItemLister

SHARED_PAGE_FOLDER = Path(__file__).parent / "page"
HOME_PATH, HOME_NAME = "/", "home"


@dataclass(frozen=True)
class SystemPage:
    """What the navigation, the front door and the list of jobs say about the page of a system.

    `summary` is the sentence on the tile of the front door. `job_titles` names the job types of the system
    for its users: `{"export_pdf": "Document as PDF"}`. `list_items` lists work that is not a job.
    """

    path: str
    title: str
    summary: str = ""
    job_titles: Mapping[str, str] = field(default_factory=dict[str, str])
    list_items: ItemLister | None = None

    @property
    def name(self) -> str:
        """The folder of the page's files in URLs, and the name of its script and its styles."""
        return self.path.removeprefix("/") or HOME_NAME


class PageRoute(Route):
    """The route of a page. The other pages of the application link to it."""

    def __init__(self, page: SystemPage, endpoint: Endpoint) -> None:
        super().__init__(page.path, endpoint, methods=["GET"])
        self.page = page


def create_page_routes(
    path: str,
    folder: Path,
    title: str,
    *,
    summary: str = "",
    job_titles: Mapping[str, str] | None = None,
    list_items: ItemLister | None = None,
) -> list[BaseRoute]:
    """Create the routes of the web page of one system, at a path such as `/exports`.

    A JavaScript, CSS or SVG file in `folder` replaces the shared file of the same name. `summary` and
    `icon.svg` make the tile of the front door. `job_titles` says how users read the job types of the system.
    If the system does work that is not a job (messages of a queue), `list_items` is an asynchronous function
    `(connection, schema, owners, limit)` that returns the newest of it as `UserItem` for each of the owners.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from holdfast.systems import create_page_routes
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "content.html").write_text("<ul id='notes'></ul>")
    >>> routes = create_page_routes("/notes", folder, "Notes", summary="Write notes and find them again.")
    """
    page = SystemPage(path, title, summary, job_titles or {}, list_items)
    content = (folder / "content.html").read_text(encoding="utf-8")
    return create_routes_of_page(page, folder, lambda _: content)


def create_routes_of_page(
    page: SystemPage, folder: Path, build_content: Callable[[Request], str]
) -> list[BaseRoute]:
    """Create the routes of a page whose content is built for each request."""

    def build_page(request: Request) -> str:
        return render_page(page, build_content(request), list_pages(request))

    index, *files = create_static_page_routes(f"/{page.name}", SHARED_PAGE_FOLDER, folder, index=build_page)
    return [PageRoute(page, cast("Route", index).endpoint), *files]


def list_pages(request: Request) -> list[SystemPage]:
    """List the pages of the application in the order of its routes, each path once."""
    pages = [route.page for route in request.app.routes if isinstance(route, PageRoute)]
    return list({page.path: page for page in reversed(pages)}.values())[::-1]


def render_page(page: SystemPage, content: str, pages: Sequence[SystemPage] = ()) -> str:
    """Insert a page (its name, title and content) and the links to the other pages into the shared layout."""
    layout = (SHARED_PAGE_FOLDER / "layout.html").read_text(encoding="utf-8")
    # The content comes last, because it may contain the other placeholders as text.
    values = {
        "{name}": escape(page.name),
        "{title}": escape(page.title),
        "{navigation}": _render_navigation(page, pages),
        "{content}": content,
    }
    for placeholder, value in values.items():
        layout = layout.replace(placeholder, value)
    return layout


def _render_navigation(page: SystemPage, pages: Sequence[SystemPage]) -> str:
    if len(pages) < 2:
        return ""
    links = "".join(
        f'\n  <a href="{escape(format_page_link(other))}"'
        f"{' aria-current=' + chr(34) + 'page' + chr(34) if other.path == page.path else ''}>"
        f"{escape(other.title)}</a>"
        for other in pages
    )
    return f'<nav id="page-navigation" aria-label="Pages">{links}\n</nav>\n'


def format_page_link(page: SystemPage) -> str:
    """Return the link to a page from another one. It is relative: the application may be below a prefix."""
    return "./" if page.path == HOME_PATH else page.name
