"""Bookmark system: a saved URL becomes a card with screenshot, image, text and icon, in the background.

    app = create_app(settings, **bookmarks.mount())      # or: holdfast api --system bookmarks
    holdfast worker holdfast.systems.bookmarks

`install` creates the tables `bookmarks` and `bookmark_imports`, the message queue `add-bookmark-url-queue`
with its dead letters, and the views of the queue in `pgmq_public`. See docs/guide/bookmarks.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from holdfast import JobType
from holdfast.systems import AppArguments
from holdfast.systems.bookmarks.additions import BookmarkLimits
from holdfast.systems.bookmarks.bookmark_endpoints import BookmarkEndpoints
from holdfast.systems.bookmarks.bookmark_items import list_bookmark_items
from holdfast.systems.bookmarks.consumer import (
    add_bookmark_url,
    bookmark_archive_cleanup,
    bookmarks_lifespan,
    create_bookmark_consumer,
    fail_abandoned_bookmarks,
)
from holdfast.systems.bookmarks.import_endpoints import ImportEndpoints
from holdfast.systems.bookmarks.messages import BOOKMARK_QUEUE
from holdfast.systems.bookmarks.shared_capture import OpenCapture
from holdfast.systems.bookmarks.task_endpoints import TaskEndpoints
from holdfast.systems.bookmarks.web_capture import open_web_capture
from holdfast.systems.page_routes import create_page_routes
from holdfast.systems.tables import is_script_installed, run_install_script

__all__ = [
    "BOOKMARK_QUEUE",
    "BookmarkLimits",
    "add_bookmark_url",
    "bookmark_archive_cleanup",
    "create_bookmark_consumer",
    "create_bookmark_routes",
    "fail_abandoned_bookmarks",
    "install",
    "install_if_needed",
    "job_types",
    "lifespan",
    "mount",
    "tasks",
]

PACKAGE_FOLDER = Path(__file__).parent
TABLES_SCRIPT, VERSIONED_RELATION = PACKAGE_FOLDER / "tables.sql", "table bookmarks"
lifespan = bookmarks_lifespan
tasks = (bookmark_archive_cleanup, fail_abandoned_bookmarks)
job_types: tuple[JobType[Any], ...] = ()


def create_bookmark_routes(
    limits: BookmarkLimits | None = None, open_capture: OpenCapture = open_web_capture
) -> list[BaseRoute]:
    """Create the routes of the bookmark API and of the page at `/bookmarks`."""
    limits = limits or BookmarkLimits()
    return [
        *TaskEndpoints(open_capture).create_routes(),
        *ImportEndpoints(limits).create_routes(),
        *BookmarkEndpoints(limits).create_routes(),
        *create_page_routes(
            "/bookmarks",
            PACKAGE_FOLDER / "page",
            "Bookmarks",
            summary="Save links as cards with a picture and the text of the page, and find them again.",
            list_items=list_bookmark_items,
        ),
    ]


def mount(limits: BookmarkLimits | None = None, open_capture: OpenCapture = open_web_capture) -> AppArguments:
    """Return the routes, tasks and job types of the application as keyword arguments of `create_app`.

    Example: `create_app(settings, **bookmarks.mount())`. `open_capture` opens what fetches pages and images
    when the endpoints of the queue run; the default is the browser and the HTTP client of the settings.
    """
    return {"routes": create_bookmark_routes(limits, open_capture), "tasks": tasks, "job_types": job_types}


async def install_if_needed(connection: Any, schema: str = "public") -> None:
    """Install the bookmark system, unless its current version is already installed in the schema."""
    if not await is_script_installed(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION):
        await install(connection, schema)


async def install(connection: Any, schema: str = "public") -> None:
    """Create the tables, the message queue and its views. Keep existing rows and a changed policy."""
    await run_install_script(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION)
