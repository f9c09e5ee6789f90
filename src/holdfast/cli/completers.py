"""Shell completion of arguments from the database: jobs, queues, workers, task types and limits.

A completion only uses a database that is already running, and gives up after a second or two: pressing the
Tab key must never start a server or wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

from holdfast import settings as settings_module
from holdfast.engine import embedded, jobs, limits, task_types, workers
from holdfast.engine import queues as engine_queues
from holdfast.engine.connection import Connection, open_connection
from holdfast.engine.messages import queues
from holdfast.formatting import format_state
from holdfast.settings import Settings

COMPLETION_CONNECT_TIMEOUT_S = 1.0
COMPLETION_QUERY_TIMEOUT_S = 2.0
MAX_SUGGESTED_JOBS = 20
MAX_SUGGESTED_QUEUES = 100
FetchSuggestions: TypeAlias = Callable[[Connection], Awaitable[list[CompletionItem]]]


def build_completer(fetch: FetchSuggestions) -> Callable[..., list[CompletionItem]]:
    """Build a shell-completion callback whose suggestions come from a database query."""

    def list_completions(context: click.Context, _: click.Parameter, prefix: str) -> list[CompletionItem]:
        try:
            overrides = {name: value for name, value in context.find_root().params.items() if value}
            overrides["connect_timeout"] = timedelta(seconds=COMPLETION_CONNECT_TIMEOUT_S)
            items = asyncio.run(_fetch_suggestions(settings_module.load_settings(overrides), fetch))
        except Exception:  # an error message would end up in the line that the user is typing
            return []
        return [item for item in items if str(item.value).startswith(prefix)]

    return list_completions


async def _fetch_suggestions(settings: Settings, fetch: FetchSuggestions) -> list[CompletionItem]:
    url, server = settings.database_url, None
    if url is None:
        server = embedded.find_running_server(settings)
        if server is None:
            return []
        url = server.url
    try:
        async with asyncio.timeout(COMPLETION_QUERY_TIMEOUT_S), open_connection(url, settings) as connection:
            return await fetch(connection)
    finally:
        if server is not None:
            server.release()


async def _suggest_jobs(connection: Connection) -> list[CompletionItem]:
    rows = await jobs.list_jobs(connection, {}, limit=MAX_SUGGESTED_JOBS)
    return [CompletionItem(job["id"], help=f"{job['status']} {job['type']}") for job in rows]


async def _suggest_queues(connection: Connection) -> list[CompletionItem]:
    task_queues = await engine_queues.list_task_queues(connection, max_rows=MAX_SUGGESTED_QUEUES)
    message_queues = await queues.list_message_queues(connection)
    return [
        *(CompletionItem(row["queue"], help=f"{row['ready']} ready") for row in task_queues),
        *(CompletionItem(queue.name, help="messages") for queue in message_queues),
    ]


async def _suggest_workers(connection: Connection) -> list[CompletionItem]:
    rows = await workers.list_workers(connection)
    return [CompletionItem(row["name"], help=format_state(row["state"])) for row in rows]


async def _suggest_task_types(connection: Connection) -> list[CompletionItem]:
    return [
        CompletionItem(row["name"], help=row["queue"]) for row in await task_types.list_task_types(connection)
    ]


async def _suggest_limits(connection: Connection) -> list[CompletionItem]:
    return [CompletionItem(row["name"]) for row in await limits.list_limits(connection)]


suggest_job_ids = build_completer(_suggest_jobs)
suggest_queue_names = build_completer(_suggest_queues)
suggest_worker_names = build_completer(_suggest_workers)
suggest_task_type_names = build_completer(_suggest_task_types)
suggest_limit_names = build_completer(_suggest_limits)
