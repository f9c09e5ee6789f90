"""How people name things on a command line: ids by their beginning, and names that the shell completes.

Completion asks the database only when one is there without being started, and gives up after a second: a
key press must never start a server, nor wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import click
from click.shell_completion import CompletionItem

from holdfast import settings as settings_module
from holdfast.cli import words
from holdfast.engine import catalogue, embedded, jobs, operate
from holdfast.engine.connection import Connection, connected
from holdfast.engine.messages import queues
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.settings import Settings

PATIENCE = 1.0
Ask = Callable[[Connection], Awaitable[list[CompletionItem]]]


async def job_named(connection: Connection, word: str) -> UUID:
    """The job with this id, or the only one whose id begins like this."""
    try:
        return UUID(word)
    except ValueError:
        pass
    if len(word.replace("-", "")) < 4 or not set(word.lower()) <= set("0123456789abcdef-"):
        raise InvalidError(
            f"{word!r} is not the id of a job.",
            fix="Give an id, or at least its first four digits.",
            field="id",
        )
    found = await operate.jobs_like(connection, word, limit=6)
    if not found:
        raise NotFoundError(f"There is no job that begins with {word}.", field="id")
    if len(found) > 1:
        shown = ", ".join(str(each) for each in found[:5])
        raise ConflictError(f"More than one job begins with {word}: {shown}.", fix="Give more of it.")
    return found[0]


def uuid_named(word: str, what: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise InvalidError(f"{word!r} is not the id of a {what}.", field="id") from None


def completes(
    ask: Callable[[Connection], Awaitable[list[CompletionItem]]],
) -> Callable[..., list[CompletionItem]]:
    """What an argument is completed with, from an answer of the database."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            given = {name: value for name, value in context.find_root().params.items() if value}
            settings = settings_module.load({**given, "connect_timeout": timedelta(seconds=PATIENCE)})
            found = asyncio.run(_answer(settings, ask))
        except Exception:  # nothing that goes wrong may be printed into a half-typed line
            return []
        return [item for item in found if str(item.value).startswith(begun)]

    return complete


async def _answer(settings: Settings, ask: Ask) -> list[CompletionItem]:
    url, server = settings.database_url, None
    if url is None:
        server = embedded.find(settings)
        if server is None:
            return []
        url = server.url
    try:
        async with asyncio.timeout(2 * PATIENCE), connected(url, settings) as connection:
            return await ask(connection)
    finally:
        if server is not None:
            server.release()


async def _jobs(connection: Connection) -> list[CompletionItem]:
    found = await jobs.list_jobs(connection, {}, limit=20)
    return [CompletionItem(job["id"], help=f"{job['status']} {job['type']}") for job in found]


async def _task_queues(connection: Connection) -> list[CompletionItem]:
    found = await operate.task_queues(connection, most=100)
    return [CompletionItem(row["queue"], help=f"{row['ready']} ready") for row in found]


async def _queues(connection: Connection) -> list[CompletionItem]:
    letters = await queues.list_queues(connection)
    return await _task_queues(connection) + [CompletionItem(q.name, help="messages") for q in letters]


async def _workers(connection: Connection) -> list[CompletionItem]:
    found = await operate.list_workers(connection)
    return [CompletionItem(row["name"], help=words.state(row["state"])) for row in found]


async def _types(connection: Connection) -> list[CompletionItem]:
    return [CompletionItem(row["name"], help=row["queue"]) for row in await catalogue.list_types(connection)]


async def _limits(connection: Connection) -> list[CompletionItem]:
    return [CompletionItem(row["name"]) for row in await operate.list_limits(connection)]


complete_job = completes(_jobs)
complete_queue = completes(_queues)
complete_worker = completes(_workers)
complete_type = completes(_types)
complete_limit = completes(_limits)
