"""Transactions on every type of connection that `on=` accepts, ended by commit or rollback."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import django.conf
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session


@asynccontextmanager
async def asyncpg_connection(url: str, commit: bool) -> AsyncGenerator[Any]:
    import asyncpg  # noqa: PLC0415  (one way of several)

    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection
    await (transaction.commit() if commit else transaction.rollback())
    await connection.close()


@asynccontextmanager
async def psycopg_async(url: str, commit: bool) -> AsyncGenerator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection
        await (connection.commit() if commit else connection.rollback())


@asynccontextmanager
async def psycopg_sync(url: str, commit: bool) -> AsyncGenerator[Any]:
    with psycopg.connect(url) as connection:
        yield connection
        (connection.commit if commit else connection.rollback)()


@asynccontextmanager
async def psycopg_autocommit_block(url: str, commit: bool) -> AsyncGenerator[Any]:
    with (
        psycopg.connect(url, autocommit=True) as connection,
        connection.transaction(force_rollback=not commit),
    ):
        yield connection


def set_url_driver(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def sqlalchemy_connection(url: str, commit: bool) -> AsyncGenerator[Any]:
    engine = sqlalchemy.create_engine(set_url_driver(url, "psycopg"))
    with engine.connect() as connection:
        yield connection
        (connection.commit if commit else connection.rollback)()
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(url: str, commit: bool) -> AsyncGenerator[Any]:
    engine = sqlalchemy.create_engine(set_url_driver(url, "psycopg"))
    with Session(engine) as session:
        yield session
        (session.commit if commit else session.rollback)()
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(url: str, commit: bool) -> AsyncGenerator[Any]:
    engine = create_async_engine(set_url_driver(url, "asyncpg"))
    async with AsyncSession(engine) as session:
        yield session
        await (session.commit() if commit else session.rollback())
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection(url: str, commit: bool) -> AsyncGenerator[Any]:
    engine = create_async_engine(set_url_driver(url, "psycopg"))
    async with engine.connect() as connection:
        yield connection
        await (connection.commit() if commit else connection.rollback())
    await engine.dispose()


TRANSACTION_FACTORIES = [
    asyncpg_connection,
    psycopg_async,
    psycopg_sync,
    psycopg_autocommit_block,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_async_session,
    sqlalchemy_async_connection,
]


def configure_django(url: str) -> None:
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    if not django.conf.settings.configured:  # with what the example of the API needs, which may come later
        others = {"ROOT_URLCONF": "api_django", "ALLOWED_HOSTS": ["*"], "SECRET_KEY": "not for real"}
        django.conf.settings.configure(DATABASES={"default": database}, **others)
        django.setup()
    elif "postgresql" not in str(django.conf.settings.DATABASES):  # the example came first, with none
        django.conf.settings.DATABASES = {"default": database}
        connections = django.db.connections
        connections.__dict__.pop("settings", None)
        connections._settings = None
        with contextlib.suppress(AttributeError):
            del connections["default"]
