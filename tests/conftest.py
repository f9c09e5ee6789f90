"""One PostgreSQL per run, one database per test.

The server is the embedded one (HOLDFAST_PG_BIN chooses other binaries), or the one in DATABASE_URL. All
xdist processes share it: the controlling process makes the folder, whoever comes first starts the server
and makes the template, and the server ends with the last of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import asyncpg
import pytest

from holdfast import settings as settings_module
from holdfast.engine import embedded, scratch
from holdfast.engine.connection import Connection, Database
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock

HOME = "HOLDFAST_TEST_HOME"
# Faster, and no test pulls the plug of the machine; durability has tests with servers of their own.
OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}


SPENT_AT_ONCE = 25  # of 12 MB each, in each process


# What takes minutes together: servers and workers killed again and again, whole sessions, pages in a browser.
LONG = (
    "campaign/test_short.py",
    "cli/test_dev.py",
    "dashboard/test_acceptance.py",
    "dashboard/test_browser.py",
    "engine/test_embedded_kills.py",
    "engine/test_embedded_recovery.py",
    "systems/test_kills.py",
    "worker/test_file_kills.py",
    "worker/test_hard.py",
    "worker/test_supervisor.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(LONG):
            item.add_marker(pytest.mark.long)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        home = tempfile.mkdtemp(prefix="holdfast-test-")
        Path(home).chmod(0o755)
        os.environ[HOME] = home


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        settings = settings_module.load_settings({"home": os.environ[HOME]})
        if settings.database_url:
            asyncio.run(scratch.drop_database(settings.database_url, template_name(settings), settings))
        else:
            embedded.stop_server(settings)
        shutil.rmtree(settings.home, ignore_errors=True)


def template_name(settings: Settings) -> str:
    return "hf_template_" + settings.home.name.rpartition("-")[2].lower()


@pytest.fixture(scope="session")
def settings() -> Settings:
    """As the machine says, but with a home that is this run's own."""
    return settings_module.load_settings({"home": os.environ[HOME]})


@pytest.fixture(scope="session")
def server_url(settings: Settings) -> Generator[Secret]:
    if settings.database_url:
        yield settings.database_url
        return
    server = embedded.start_server(settings, options=OPTIONS)
    yield server.url
    server.release()


@pytest.fixture(scope="session")
def template(server_url: Secret, settings: Settings) -> str:
    name = template_name(settings)
    with (settings.home / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        created = settings.home / "template.made"
        if not created.exists():
            asyncio.run(scratch.create_template_database(server_url, name, settings))
            created.touch()
    return name


def _name() -> str:
    return f"hf_test_{uuid.uuid4().hex[:16]}"


@pytest.fixture(scope="session")
def spent(server_url: Secret, settings: Settings) -> Generator[list[str]]:
    """Databases of tests that have ended, dropped many at once."""
    names: list[str] = []
    yield names
    if settings.database_url and names:
        asyncio.run(scratch.drop_databases(server_url, names, settings))


async def _spend(name: str, spent: list[str], server: Secret, settings: Settings) -> None:
    spent.append(name)
    if len(spent) >= SPENT_AT_ONCE:
        await scratch.drop_databases(server, spent, settings)
        spent.clear()


@pytest.fixture
async def url(
    server_url: Secret, template: str, settings: Settings, spent: list[str]
) -> AsyncGenerator[Secret]:
    """A migrated database of the test's own, with the movable clock."""
    name = _name()
    await scratch.create_database(server_url, name, settings, template=template)
    yield scratch.build_database_url(server_url, name)
    await _spend(name, spent, server_url, settings)


@pytest.fixture
async def empty_url(server_url: Secret, settings: Settings, spent: list[str]) -> AsyncGenerator[Secret]:
    """A database of the test's own in which nothing is installed."""
    name = _name()
    await scratch.create_database(server_url, name, settings)
    yield scratch.build_database_url(server_url, name)
    await _spend(name, spent, server_url, settings)


@pytest.fixture
async def db(url: Secret, settings: Settings) -> AsyncGenerator[Database]:
    async with Database(url, settings) as database:
        yield database


@pytest.fixture
async def conn(url: Secret) -> AsyncGenerator[Connection]:
    connection = await asyncpg.connect(url.reveal())
    yield connection
    await connection.close()


@pytest.fixture
async def second(url: Secret) -> AsyncGenerator[Connection]:
    connection = await asyncpg.connect(url.reveal())
    yield connection
    await connection.close()


@pytest.fixture
def clock(url: Secret, settings: Settings) -> Clock:
    return Clock(url, settings)
