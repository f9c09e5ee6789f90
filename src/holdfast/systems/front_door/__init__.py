"""The front door: a page at `/` with a tile for each mounted system, and the page of a user's jobs and files.

`holdfast.systems.mount` adds these routes when a system with a page is mounted. See docs/guide/pages.md.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.routing import BaseRoute

from holdfast.systems.front_door.my_jobs import MyJobsEndpoints
from holdfast.systems.page_routes import (
    HOME_PATH,
    PageRoute,
    SystemPage,
    create_page_routes,
    create_routes_of_page,
    format_page_link,
    list_pages,
)

__all__ = ["add_front_door", "create_front_door_routes"]

PACKAGE_FOLDER = Path(__file__).parent
MY_JOBS_PATH = "/my-jobs"
TILE = """\
      <li><a class="card tile" href="{link}">
        <img src="{name}/icon.svg" alt="" width="44" height="44">
        <strong>{title}</strong>
        <span class="muted">{summary}</span>
      </a></li>
"""


def add_front_door(routes: list[BaseRoute]) -> list[BaseRoute]:
    """Add the front door to the routes of systems, unless none of them has a page or `/` is taken."""
    paths = {getattr(route, "path", None) for route in routes}
    if HOME_PATH in paths or not any(isinstance(route, PageRoute) for route in routes):
        return routes
    return [*_create_home_routes(), *routes, *_create_my_jobs_routes()]


def create_front_door_routes() -> list[BaseRoute]:
    """Create the routes of the front door: its page, and the page and API of a user's jobs."""
    return [*_create_home_routes(), *_create_my_jobs_routes()]


def _create_home_routes() -> list[BaseRoute]:
    page = SystemPage(HOME_PATH, "Home")
    folder = PACKAGE_FOLDER / "home_page"
    content = (folder / "content.html").read_text(encoding="utf-8")

    def build_content(request: Request) -> str:
        tiles = "".join(_render_tile(other) for other in list_pages(request) if other.path != HOME_PATH)
        return content.replace("{tiles}", tiles)

    return create_routes_of_page(page, folder, build_content)


def _render_tile(page: SystemPage) -> str:
    return TILE.format(
        link=escape(format_page_link(page)),
        name=escape(page.name),
        title=escape(page.title),
        summary=escape(page.summary),
    )


def _create_my_jobs_routes() -> list[BaseRoute]:
    page_routes = create_page_routes(
        MY_JOBS_PATH,
        PACKAGE_FOLDER / "jobs_page",
        "My jobs and files",
        summary="Everything that runs for you, with its progress, its files and the space that they use.",
    )
    return [*MyJobsEndpoints().create_routes(), *page_routes]
