"""Whether the server really answers, and is ours: a login with the password, not a look at a pid.

A copied folder has the same password as its original, so a login alone could reach the original. The server
is asked for its name as well, which we gave it and which follows from the path of its folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeVar

import asyncpg

from holdfast.engine.connection import translated
from holdfast.settings import Secret

LOGIN_SECONDS = 5.0
T = TypeVar("T")


class Answer(Enum):
    OURS = "ours"
    STARTING = "starting up or shutting down"
    REFUSED = "does not take our password"
    NO_DATABASE = "has no such database"
    FULL = "has no connection free"
    FOREIGN = "is another server"
    SILENT = "does not answer"


def ask(url: Secret, tag: str) -> Answer:
    return _waited_for(_ask(url, tag))


def ensure_database(url: Secret, name: str) -> None:
    with translated(url):
        _waited_for(_ensure_database(url, name))


def server_version(url: Secret) -> str:
    with translated(url):
        return _waited_for(_server_version(url))


def _waited_for(work: Coroutine[Any, Any, T]) -> T:
    # Callers may sit in an event loop of their own, and a loop cannot be run inside another.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _ask(url: Secret, tag: str) -> Answer:
    try:
        connection = await _connected(url)
    except asyncpg.PostgresError as problem:
        return _refusal(problem)
    except (OSError, TimeoutError, asyncpg.InterfaceError):
        return Answer.SILENT
    try:
        name = await connection.fetchval("show cluster_name", timeout=LOGIN_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return Answer.SILENT
    finally:
        await _closed(connection)
    return Answer.OURS if name == tag else Answer.FOREIGN


def _refusal(problem: asyncpg.PostgresError) -> Answer:
    code = problem.sqlstate or ""
    if code == "3D000":
        return Answer.NO_DATABASE
    if code == "53300":
        return Answer.FULL
    return Answer.REFUSED if code.startswith("28") else Answer.STARTING


async def _connected(url: Secret) -> asyncpg.Connection[Any]:
    # PGSSLMODE and its like are meant for other servers than this one on loopback.
    return await asyncpg.connect(url.reveal(), ssl=False, timeout=LOGIN_SECONDS, statement_cache_size=0)


async def _closed(connection: asyncpg.Connection[Any]) -> None:
    try:
        await connection.close(timeout=1)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


async def _ensure_database(url: Secret, name: str) -> None:
    connection = await _connected(url)
    try:
        there = "select from pg_catalog.pg_database where datname = $1"
        if not await connection.fetch(there, name):
            await connection.execute(f'create database "{name}"')
    finally:
        await _closed(connection)


async def _server_version(url: Secret) -> str:
    connection = await _connected(url)
    try:
        return str(await connection.fetchval("show server_version"))
    finally:
        await _closed(connection)
