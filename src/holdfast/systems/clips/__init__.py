"""Clip system: an inserted URL of a video becomes a clip with transcript, summary, tags and search.

    app = create_app(settings, **clips.mount())      # or: holdfast api --system clips
    holdfast worker holdfast.systems.clips

`install` creates the table `clipnest_videos`, or adds to one that exists, the queues `scrape_jobs` and
`enrich_jobs`, and the functions that Supabase clients call. See docs/guide/clips.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from holdfast import JobType
from holdfast.systems import AppArguments
from holdfast.systems.clips.clip_endpoints import ClipEndpoints
from holdfast.systems.clips.clip_items import list_clip_items
from holdfast.systems.clips.clip_metrics import list_clip_metrics
from holdfast.systems.clips.consumers import (
    clips_lifespan,
    create_clip_consumers,
    enqueue_abandoned_clips,
    enrich_clip,
    reembed_clips,
    scrape_clip,
)
from holdfast.systems.clips.ingest_endpoint import create_ingest_routes
from holdfast.systems.clips.messages import ENRICH_QUEUE, SCRAPE_QUEUE
from holdfast.systems.clips.search_endpoint import SearchEndpoint
from holdfast.systems.page_routes import create_page_routes
from holdfast.systems.tables import build_install_script, is_script_installed, run_install_script

__all__ = [
    "ENRICH_QUEUE",
    "SCRAPE_QUEUE",
    "build_install_sql",
    "create_clip_consumers",
    "create_clip_routes",
    "enqueue_abandoned_clips",
    "enrich_clip",
    "install",
    "install_if_needed",
    "job_types",
    "lifespan",
    "mount",
    "reembed_clips",
    "scrape_clip",
    "tasks",
]

PACKAGE_FOLDER = Path(__file__).parent
TABLES_SCRIPT, VERSIONED_RELATION = PACKAGE_FOLDER / "tables", "table clipnest_videos"
lifespan = clips_lifespan
tasks = (enqueue_abandoned_clips, reembed_clips)
job_types: tuple[JobType[Any], ...] = ()


def create_clip_routes() -> list[BaseRoute]:
    """Create the routes of the clip API and of the page at `/clips`."""
    return [
        *create_ingest_routes(),
        *SearchEndpoint().create_routes(),
        *ClipEndpoints().create_routes(),
        *create_page_routes(
            "/clips",
            PACKAGE_FOLDER / "page",
            "Clips",
            summary="Add videos, read their summaries and transcripts, and search what is said in them.",
            list_items=list_clip_items,
        ),
    ]


def mount() -> AppArguments:
    """Return the routes, tasks, job types and metrics of clips as keyword arguments of `create_app`.

    Example: `create_app(settings, **clips.mount())`.
    """
    return {
        "routes": create_clip_routes(),
        "tasks": tasks,
        "job_types": job_types,
        "metric_sources": [list_clip_metrics],
    }


async def install_if_needed(connection: Any, schema: str = "public") -> None:
    """Install the clip system, unless its current version is already installed in the schema."""
    if not await is_script_installed(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION):
        await install(connection, schema)


async def install(connection: Any, schema: str = "public") -> None:
    """Create the table, the queues and the functions. Keep existing rows, queues and changed limits."""
    await run_install_script(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION)


def build_install_sql(schema: str = "public") -> str:
    """Return the SQL of `install`, for an SQL editor. Run it in one transaction."""
    return build_install_script(TABLES_SCRIPT, schema, VERSIONED_RELATION)
