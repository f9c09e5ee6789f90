"""The routes of a web page of a system of your own: see docs/guide/pages.md."""

from pathlib import Path

from holdfast.systems.page_routes import create_page_routes

routes = create_page_routes(
    "/notes",
    Path(__file__).parent / "page",
    "Notes",
    summary="Write notes and find them again.",
    job_titles={"index_note": "Search index of a note"},
)
