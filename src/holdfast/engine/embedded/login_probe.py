"""Log in to a server to find out whether it accepts connections and is the expected server.

A copied folder has the same password as its original, so a login alone could reach the original. The probe
also compares the cluster name of the server, which is derived from the path of its folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeVar

import asyncpg

from holdfast.engine.connection import translate_driver_errors
from holdfast.settings import Secret

LOGIN_TIMEOUT_S = 5.0
T = TypeVar("T")


class LoginResult(Enum):
    """The result of a login. The values complete the sentence "The server ..."."""

    OURS = "is ours"
    STARTING = "is starting up or shutting down"
    REFUSED = "rejects our password"
    NO_DATABASE = "does not have this database"
    FULL = "has no free connection"
    FOREIGN = "is another server"
    SILENT = "does not respond"


def probe_login(url: Secret, cluster_name: str) -> LoginResult:
    """Log in, compare the cluster name with `cluster_name`, and return the result."""
    return _run_in_thread(_probe_login(url, cluster_name))


def ensure_database_exists(url: Secret, name: str) -> None:
    """Create a database unless it exists."""
    with translate_driver_errors(url):
        _run_in_thread(_ensure_database_exists(url, name))


def get_server_version(url: Secret) -> str:
    with translate_driver_errors(url):
        return _run_in_thread(_get_server_version(url))


def _run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    # The caller may run in an event loop, and a loop cannot run inside another one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _probe_login(url: Secret, cluster_name: str) -> LoginResult:
    try:
        connection = await _open_connection(url)
    except asyncpg.PostgresError as error:
        return _classify_refusal(error)
    except (OSError, TimeoutError, asyncpg.InterfaceError):
        return LoginResult.SILENT
    try:
        name = await connection.fetchval("show cluster_name", timeout=LOGIN_TIMEOUT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return LoginResult.SILENT
    finally:
        await _close_connection(connection)
    return LoginResult.OURS if name == cluster_name else LoginResult.FOREIGN


def _classify_refusal(error: asyncpg.PostgresError) -> LoginResult:
    code = error.sqlstate or ""
    if code == "3D000":
        return LoginResult.NO_DATABASE
    if code == "53300":
        return LoginResult.FULL
    return LoginResult.REFUSED if code.startswith("28") else LoginResult.STARTING


async def _open_connection(url: Secret) -> asyncpg.Connection[Any]:
    # PGSSLMODE and similar variables are meant for other servers, not for this one on loopback.
    return await asyncpg.connect(url.reveal(), ssl=False, timeout=LOGIN_TIMEOUT_S, statement_cache_size=0)


async def _close_connection(connection: asyncpg.Connection[Any]) -> None:
    try:
        await connection.close(timeout=1)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


async def _ensure_database_exists(url: Secret, name: str) -> None:
    connection = await _open_connection(url)
    try:
        find_database = "select from pg_catalog.pg_database where datname = $1"
        if not await connection.fetch(find_database, name):
            await connection.execute(f'create database "{name}"')
    finally:
        await _close_connection(connection)


async def _get_server_version(url: Secret) -> str:
    connection = await _open_connection(url)
    try:
        return str(await connection.fetchval("show server_version"))
    finally:
        await _close_connection(connection)
