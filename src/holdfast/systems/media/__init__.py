"""Media system: a shared link becomes a stored file with poster, audio track and transcript.

    app = create_app(settings, **media.mount())      # or: holdfast api --system media
    holdfast worker holdfast.systems.media

`install` creates the table `shares`, or adds to one that exists, and the limits of the downloads. See
docs/guide/media.md. `contracts.py` says how the parts of this package call each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from holdfast import JobType
from holdfast.systems import AppArguments
from holdfast.systems.media.media_tasks import DOWNLOAD_QUEUE, media_download
from holdfast.systems.media.processing_tasks import media_process, media_transcribe
from holdfast.systems.media.share_endpoints import ShareEndpoints
from holdfast.systems.media.share_metrics import list_media_metrics
from holdfast.systems.media.worker_state import media_lifespan
from holdfast.systems.page_routes import create_page_routes
from holdfast.systems.tables import is_script_installed, run_install_script

__all__ = [
    "create_media_routes",
    "install",
    "install_if_needed",
    "job_types",
    "lifespan",
    "media_download",
    "media_process",
    "media_transcribe",
    "mount",
    "tasks",
]

JOB_TYPE = "media_share"  # of the jobs that tables.sql submits
MAX_RUNNING_DOWNLOADS, MAX_RUNNING_DOWNLOADS_PER_HOST, MAX_RUNNING_YTDLP = 100, 8, 12
# Not a task of its own: the table of the shares applies this limit when a link turns out to be a page.
YTDLP_LIMIT_TYPE = "media_download_with_ytdlp"
PACKAGE_FOLDER = Path(__file__).parent
TABLES_SCRIPT, VERSIONED_RELATION = PACKAGE_FOLDER / "tables.sql", "table shares"
lifespan = media_lifespan
tasks = (media_download, media_process, media_transcribe)
job_types: tuple[JobType[Any], ...] = ()


def create_media_routes() -> list[BaseRoute]:
    """Create the routes of the media API and of the page at `/media`."""
    return [
        *ShareEndpoints().create_routes(),
        *create_page_routes(
            "/media",
            PACKAGE_FOLDER / "page",
            "Media",
            summary="Download videos and sound from links, play them and read what is said.",
            job_titles={JOB_TYPE: "Media download"},
        ),
    ]


def mount() -> AppArguments:
    """Return the routes, tasks, job types and metrics of media as keyword arguments of `create_app`.

    Example: `create_app(settings, **media.mount())`.
    """
    return {
        "routes": create_media_routes(),
        "tasks": tasks,
        "job_types": job_types,
        "metric_sources": [list_media_metrics],
    }


async def install_if_needed(connection: Any, schema: str = "public") -> None:
    """Install the media system, unless its current version is already installed in the schema."""
    if not await is_script_installed(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION):
        await install(connection, schema)


async def install(connection: Any, schema: str = "public") -> None:
    """Create the tables and limits of the media system. Keep existing rows and changed limits."""
    await run_install_script(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION)
    existing = {row["name"] for row in await connection.fetch("select name from holdfast.limit_rules")}
    for name, task_type, per_key, max_running in (
        ("media downloads", media_download.name, False, MAX_RUNNING_DOWNLOADS),
        ("media downloads of one host", media_download.name, True, MAX_RUNNING_DOWNLOADS_PER_HOST),
        ("media downloads with yt-dlp", YTDLP_LIMIT_TYPE, False, MAX_RUNNING_YTDLP),
    ):
        if name not in existing:
            await connection.execute(
                "select holdfast.put_limit($1, $2, $3, $4, $5)",
                *(name, DOWNLOAD_QUEUE, task_type, per_key, max_running),
            )
