"""Serve the web pages of the bundled applications, from one folder each and one shared folder."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import BaseRoute

from holdfast.server import create_static_page_routes

SHARED_PAGE_FOLDER = Path(__file__).parent / "page"


def create_page_routes(path: str, folder: Path) -> list[BaseRoute]:
    """Create the routes of the web page of one application in `holdfast.systems`.

    A file in `folder` replaces the shared file of the same name.
    """
    return create_static_page_routes(path, SHARED_PAGE_FOLDER, folder)
