"""The routes of a web page of a system of your own: see docs/guide/pages.md."""

from pathlib import Path

from holdfast.systems.page_routes import create_page_routes

routes = create_page_routes("/notes", Path(__file__).parent / "page", "Notes")
