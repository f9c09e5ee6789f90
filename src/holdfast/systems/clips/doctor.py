"""The checks of `holdfast doctor` for clips: search, providers, queues and failed clips."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from typing import Any, Final

from holdfast import Client
from holdfast.errors import HoldfastError
from holdfast.systems.clips.clip_queries import is_installed
from holdfast.systems.clips.messages import ENRICH_QUEUE, SCRAPE_QUEUE
from holdfast.systems.clips.scraping import parse_sources
from holdfast.systems.system_checks import SystemFinding, format_age
from holdfast.systems.tables import qualify_tables

MAX_WAITING_TIME: Final = timedelta(minutes=15)
WORKER_COMMAND: Final = "holdfast worker holdfast.systems.clips"


async def check_clips(client: Client) -> list[SystemFinding]:
    """Run the checks, or return an empty list if the clip system is not installed in the database."""
    schema = client.settings.systems_schema
    async with client.connection() as connection:
        if not await is_installed(connection, schema):
            return []
        findings = [await check_search_mode(connection, schema), check_providers(client)]
        findings += [await check_queue(connection, queue) for queue in (SCRAPE_QUEUE, ENRICH_QUEUE)]
        return [*findings, await check_failed_clips(connection, schema)]


async def check_search_mode(connection: Any, schema: str) -> SystemFinding:
    """Report how search by meaning works: with pgvector, or with signatures of embeddings."""
    mode = await connection.fetchval(qualify_tables("select {}.get_clip_search_mode()", schema))
    if mode == "pgvector":
        return SystemFinding("ok", "Search by meaning uses pgvector (HNSW for large collections).")
    return SystemFinding(
        "ok",
        "Search by meaning uses signatures of 256 bits with exact ranking, because pgvector is not there.",
    )


def check_providers(client: Client) -> SystemFinding:
    """Report which providers are remote, and warn if local embeddings are needed and not installed."""
    settings = client.settings
    try:
        sources = parse_sources(settings.clips_sources)
    except HoldfastError as error:
        return SystemFinding("fail", error.message, error.fix)
    if settings.embeddings_url is None and importlib.util.find_spec("wordllama") is None:
        return SystemFinding(
            "warn",
            "Local embeddings are not installed on this machine.",
            "pip install 'holdfast[embeddings]', or set embeddings_url.",
        )
    remote = [kind for kind in ("scraping", "transcription", "text", "embeddings")
              if getattr(settings, f"{kind}_url") is not None]  # fmt: skip
    where = f"remote: {', '.join(remote)}" if remote else "all local"
    return SystemFinding("ok", f"Sources: {', '.join(sources)}. Providers: {where}.")


async def check_queue(connection: Any, queue: str) -> SystemFinding:
    """Report how many messages wait, and warn if a due message is not read."""
    query = (
        "select count(*) as total, holdfast.now() - min(vt) filter (where vt <= holdfast.now()) as unread"
        " from pgmq.<queue>"
    )
    row = await connection.fetchrow(query.replace("<queue>", f"q_{queue}"))
    if row["unread"] is not None and row["unread"] > MAX_WAITING_TIME:
        age = format_age(row["unread"])
        text = f"{queue}: {row['total']} messages; one has been due for {age} without being read."
        return SystemFinding("warn", text, f"Start a worker, or more of them: {WORKER_COMMAND}")
    return SystemFinding("ok", f"{queue}: {row['total']} messages.")


async def check_failed_clips(connection: Any, schema: str) -> SystemFinding:
    """Warn of clips that failed in the last day, with the most frequent reason."""
    row = await connection.fetchrow(
        qualify_tables(
            "select count(*) as total, mode() within group (order by processing_error) as reason"
            " from {}.clipnest_videos where processing_status = 'failed'"
            " and updated_at > clock_timestamp() - interval '1 day'",
            schema,
        )
    )
    if not row["total"]:
        return SystemFinding("ok", "No clip failed in the last day.")
    return SystemFinding(
        "warn", f"{row['total']} clips failed in the last day, most of them with: {row['reason']}",
        "Users retry failed clips; `select enqueue_clip(id, true)` does it in SQL."
    )  # fmt: skip
